"""Compiled loops of training: softmax averages of many short prompts under many models. Needs numba.

Tokens are (rows, dimensions, tokens): loops take a chunk of them and three dimensions at a time, and a multiple of LANES tokens,
so that none is left over for a slow loop of single ones; those beyond a model's length get weight 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlimit.numerics.compiled import part

CHUNK, LANES = 256, 32
"""Tokens that are held in cache at once, and that loops take at once."""
LOG2E = np.float32(1.4426950408889634)
SAFE = np.float32(2.0**80)
"""Sums of 2^score between 1/SAFE and SAFE need no shift."""


@part
def project(tokens: Any, b: int, low: int, n: int, s: Any, h: Any, w: Any, t: Any) -> None:
    """w = sᵀz and t = hᵀz; s and h have 0 beyond the last dimension."""
    last = tokens.shape[1] - 1
    for c in range(0, last + 1, 3):
        z0, z1, z2 = tokens[b, c, low:], tokens[b, min(c + 1, last), low:], tokens[b, min(c + 2, last), low:]
        s0, s1, s2, h0, h1, h2 = s[c], s[c + 1], s[c + 2], h[c], h[c + 1], h[c + 2]
        if c == 0:
            for i in range(n):
                w[i] = s0 * z0[i] + s1 * z1[i] + s2 * z2[i]
                t[i] = h0 * z0[i] + h1 * z1[i] + h2 * z2[i]
        else:
            for i in range(n):
                w[i] += s0 * z0[i] + s1 * z1[i] + s2 * z2[i]
                t[i] += h0 * z0[i] + h1 * z1[i] + h2 * z2[i]


@part
def raise_two(w: Any, n: int, shift: Any, exponent: Any, power: Any) -> None:
    """w ← 2^{w − shift} = 2^r p(f): r whole, |f| ≤ ½, p to 1e-7; written out since a call to exp would not vectorise. `power` is
    `exponent` read as float32."""
    for i in range(n):
        y = min(max(w[i] - shift, np.float32(-126.0)), np.float32(127.0))
        r = np.floor(y + np.float32(0.5))
        f = y - r
        p = np.float32(1.5403530393381609e-4)
        p = p * f + np.float32(1.3333558146428443e-3)
        p = p * f + np.float32(9.618129107628477e-3)
        p = p * f + np.float32(5.550410866482158e-2)
        p = p * f + np.float32(2.402265069591007e-1)
        p = p * f + np.float32(6.931471805599453e-1)
        w[i] = p * f + np.float32(1.0)
        exponent[i] = np.int32(np.int32(np.int32(r) + np.int32(127)) << np.int32(23))
    for i in range(n):
        w[i] *= power[i]


@part
def gather(tokens: Any, b: int, low: int, n: int, w: Any, t: Any, first: Any, second: Any) -> Any:
    """Adds Σ w z to `first` and Σ w t z to `second`; Σ w."""
    last = tokens.shape[1] - 1
    total = np.float32(0.0)
    for i in range(n):
        t[i] *= w[i]
        total += w[i]
    for c in range(0, last + 1, 3):
        z0, z1, z2 = tokens[b, c, low:], tokens[b, min(c + 1, last), low:], tokens[b, min(c + 2, last), low:]
        f0 = f1 = f2 = g0 = g1 = g2 = np.float32(0.0)
        for i in range(n):
            f0 += w[i] * z0[i]
            f1 += w[i] * z1[i]
            f2 += w[i] * z2[i]
            g0 += t[i] * z0[i]
            g1 += t[i] * z1[i]
            g2 += t[i] * z2[i]
        first[c] += f0
        first[c + 1] += f1
        first[c + 2] += f2
        second[c] += g0
        second[c + 1] += g1
        second[c + 2] += g2
    return total


@part
def highest(tokens: Any, b: int, length: int, s: Any) -> Any:
    """The largest sᵀz."""
    high = np.float32(-np.inf)
    for i in range(length):
        score = np.float32(0.0)
        for c in range(tokens.shape[1]):
            score += s[c] * tokens[b, c, i]
        high = max(high, score)
    return high


@part
def weigh(
    tokens: Any,
    b: int,
    length: int,
    s: Any,
    h: Any,
    shift: Any,
    w: Any,
    t: Any,
    exponent: Any,
    power: Any,
    first: Any,
    second: Any,
) -> Any:
    """Σ w, and in `first` and `second` Σ w z and Σ w (hᵀz) z, over the first tokens of row b, w = 2^{sᵀz − shift}."""
    total = np.float32(0.0)
    for c in range(len(first)):
        first[c], second[c] = 0, 0
    for low in range(0, length, CHUNK):
        n = min(CHUNK, length - low)
        wide = min(LANES * ((n + LANES - 1) // LANES), tokens.shape[2] - low)
        project(tokens, b, low, wide, s, h, w, t)
        raise_two(w, wide, shift, exponent, power)
        for i in range(n, wide):
            w[i] = 0
        total += gather(tokens, b, low, wide, w, t, first, second)
    return total


def softmax_rows(
    start: int, stop: int, tokens: Any, a: Any, along: Any, lengths: Any, mean: Any, push: Any
) -> None:  # pragma: no cover  (compiled)
    """Rows start … stop − 1: z̄ = Σ w z/Σ w over the tokens within a model's length, and its derivative along h, Σ w (hᵀz) z/Σ w − (hᵀz̄) z̄."""
    D, real = tokens.shape[1], np.float32
    w, t, exponent = np.empty(CHUNK, real), np.empty(CHUNK, real), np.empty(CHUNK, np.int32)
    power, none = exponent.view(real), real(0.0)
    s, h, first, second = (
        np.zeros(D + 2, real),
        np.zeros(D + 2, real),
        np.empty(D + 2, real),
        np.empty(D + 2, real),
    )
    for b in range(start, stop):
        for m in range(a.shape[1]):
            for c in range(D):
                s[c], h[c] = a[b, m, c] * LOG2E, along[b, m, c]
            total = weigh(tokens, b, lengths[m], s, h, none, w, t, exponent, power, first, second)
            if not 1 / SAFE < total < SAFE:
                high = highest(tokens, b, lengths[m], s)
                total = weigh(tokens, b, lengths[m], s, h, high, w, t, exponent, power, first, second)
            dot = none
            for c in range(D):
                mean[b, m, c] = first[c] / total
                dot += mean[b, m, c] * h[c]
            for c in range(D):
                push[b, m, c] = second[c] / total - mean[b, m, c] * dot


def gram_rows(start: int, stop: int, T: Any, counts: Any, S: Any) -> None:  # pragma: no cover  (compiled)
    """S_k = Σ_{j ≤ k} T_j T_jᵀ/counts[k] of rows start … stop − 1."""
    K, D = T.shape[1], T.shape[2]
    total = np.empty((D, D), np.float32)
    for b in range(start, stop):
        total[:] = 0
        for k in range(K):
            for c in range(D):
                for d in range(c + 1):
                    product = np.float32(0.0)
                    for j in range(D):
                        product += T[b, k, c, j] * T[b, k, d, j]
                    total[c, d] += product
                    S[b, k, c, d] = total[c, d] / np.float32(counts[k])
                    S[b, k, d, c] = S[b, k, c, d]
