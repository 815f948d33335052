"""White noise from a counter: block (row, i) of four words is Philox-4×32 with ten rounds [salmon2011parallel] of that counter under a
key, and two words u, v are two normals (Box and Muller):

    √(−2 ln u) (cos, sin)(2π v)

No word waits for another, so that all lanes of the processor draw at once: three times as fast as torch's generator, which steps
from word to word. Without numba the same numbers, up to rounding, come from numpy.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int, UInt32
from scipy import special
from torch import Tensor

from attnlimit.numerics.compiled import has_numba, run_compiled

MULTIPLY = (0xD2511F53, 0xCD9E8D57)
ADD = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
GROUP = 64
"""Rows are drawn in so many numbers, a few too many, so that no loop has single ones left over."""
FARTHEST = 6.7
"""No normal of 31 bits is farther from 0: √(2 · 32 ln 2) = 6.66."""
NODES, CLOSE = 128, 1e-8


def white_key(generator: torch.Generator) -> UInt32[np.ndarray, " 2"]:
    """The generator's next key."""
    # From 62 bits: with 31 the oldest torch takes other numbers of the generator.
    return (torch.randint(2**62, (2,), generator=generator) % 2**31).numpy().astype(np.uint32)


def white_rows(rows: int, size: int, key: UInt32[np.ndarray, " 2"]) -> Float[Tensor, "rows size"]:
    """Standard normals in float32 on the CPU."""
    wide = GROUP * -(-size // GROUP)
    if has_numba():
        from attnlimit.numerics.normal_loops import normal_rows

        noise = torch.empty(rows, wide)
        run_compiled(normal_rows, rows, torch.from_numpy(key), noise)
        return noise[:, :size]
    counter = np.zeros((4, rows, wide // 4), np.uint32)
    counter[0], counter[1] = np.arange(wide // 4), np.arange(rows)[:, None]
    return _plain_normals(philox(counter, key).transpose(1, 0, 2))[:, :size]


def philox(
    counter: UInt32[np.ndarray, "4 ..."], key: UInt32[np.ndarray, " 2"]
) -> UInt32[np.ndarray, "4 ..."]:
    """Four random words for each counter of four words."""
    c0, c1, c2, c3 = counter.astype(np.uint64)
    low, half = np.uint64(2**32 - 1), np.uint64(32)
    for r in range(ROUNDS):
        k0, k1 = (np.uint64((int(k) + r * step) % 2**32) for k, step in zip(key, ADD, strict=True))
        p0, p1 = c0 * np.uint64(MULTIPLY[0]), c2 * np.uint64(MULTIPLY[1])
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def chi_of_normal(freedom: Int[np.ndarray, " *shape"]) -> Float[np.ndarray, "terms ..."]:
    """c with χ_k = F_k⁻¹(Φ(g)) = Σ_j c_j T_j(g/FARTHEST) of a standard normal g, within 1e-8: so lanes draw χ side by side, with no rejections."""
    x = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    tail, half = special.ndtr(-FARTHEST * np.abs(x)), np.asarray(freedom)[..., None] / 2
    chi = np.sqrt(2 * np.where(x < 0, special.gammaincinv(half, tail), special.gammainccinv(half, tail)))
    terms = 2 / NODES * np.moveaxis(chi @ np.polynomial.chebyshev.chebvander(x, NODES - 1), -1, 0)
    terms[0] /= 2
    beyond = np.abs(terms[::-1]).cumsum(0)[::-1].reshape(NODES, -1).max(1)
    return terms[: int((beyond > CLOSE).sum()) // 2 * 2 + 1]  # an odd number: loops take them in pairs


def chebyshev(x: Float[Tensor, "*rows"], terms: Float[Tensor, "terms ..."]) -> Float[Tensor, "*rows"]:
    """Σ_j terms[j] T_j(x) by Clenshaw's recurrence."""
    now, last = torch.zeros_like(x), torch.zeros_like(x)
    for term in terms[1:].flip(0):
        now, last = term + 2 * x * now - last, now
    return terms[0] + x * now - last


def _plain_normals(words: UInt32[np.ndarray, "rows 4 blocks"]) -> Float[Tensor, "rows numbers"]:
    """In float64. The upper two bits of v, rounded, say the quarter turn, in which each is turned or mirrored into its place."""
    first, second = words[:, ::2], words[:, 1::2].view(np.int32).astype(np.int64)
    length = np.sqrt(-2 * np.log(((first >> np.uint32(1)) + 0.5) / 2**31))
    quarter = (second + 2**29) >> 30
    turn = (second - (quarter << 30)) * (math.pi / 2**31)
    cosine, sine, odd = np.cos(turn), np.sin(turn), quarter % 2 == 1
    length = np.where(quarter % 4 < 2, length, -length)
    pairs = [length * np.where(odd, sine, cosine), length * np.where(odd, cosine, sine)]
    return torch.from_numpy(np.stack(pairs, 2).reshape(len(words), -1)).float()
