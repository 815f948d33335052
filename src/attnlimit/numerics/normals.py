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
from jaxtyping import Float, UInt32
from torch import Tensor

from attnlimit.numerics.compiled import has_numba, run_compiled

MULTIPLY = (0xD2511F53, 0xCD9E8D57)
ADD = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
GROUP = 64
"""Rows are drawn in so many numbers, a few too many, so that no loop has single ones left over."""


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
