"""Compiled loops of white noise (numerics/normals.py). Need numba, which adds two whole numbers of 32 bits in 64: hence the casts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnlimit.numerics.compiled import part
from attnlimit.numerics.instructions import bits_of, from_bits
from attnlimit.numerics.normals import ADD, MULTIPLY, ROUNDS

BLOCK = 256
"""Counters that are held in cache at once."""
FIRST, SECOND, HALF = np.uint64(MULTIPLY[0]), np.uint64(MULTIPLY[1]), np.uint64(32)
LN2 = np.float32(math.log(2))
QUARTER = np.float32(math.pi / 2**31)


@part
def draw_words(row: int, low: int, n: int, key: Any, words: Any) -> None:
    """Words 0 … 3 of counters (low + i, row, 0, 0), each to a row of `words`."""
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    for i in range(n):
        c0, c1, c2, c3 = np.uint32(low + i), np.uint32(row), np.uint32(0), np.uint32(0)
        k0, k1 = key[0], key[1]
        for _ in range(ROUNDS):
            p0, p1 = np.uint64(c0) * FIRST, np.uint64(c2) * SECOND
            c0, c2 = np.uint32(p1 >> HALF) ^ c1 ^ k0, np.uint32(p0 >> HALF) ^ c3 ^ k1
            c1, c3 = np.uint32(p1), np.uint32(p0)
            k0, k1 = np.uint32(k0 + np.uint32(ADD[0])), np.uint32(k1 + np.uint32(ADD[1]))
        w0[i], w1[i], w2[i], w3[i] = np.int32(c0), np.int32(c1), np.int32(c2), np.int32(c3)


@part
def normal_pairs(u: Any, v: Any, n: int, first: Any, second: Any) -> None:
    """√(−2 ln u) (cos, sin) of v's angle. ln u = e ln 2 + 2 artanh t with u = 2^e f, √½ ≤ f < √2, t = (f − 1)/(f + 1); all by their series,
    angles in quarters around the axes."""
    third, fifth, seventh, ninth = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7), np.float32(1 / 9)
    for i in range(n):
        whole = np.int32(np.uint32(u[i]) >> np.uint32(1))
        bits = bits_of((np.float32(whole) + np.float32(0.5)) * np.float32(2.0**-31))
        e = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
        f = from_bits(np.int32(bits - np.int32(e << np.int32(23))))
        t = (f - np.float32(1.0)) / (f + np.float32(1.0))
        y = t * t
        series = t + t * y * (third + y * (fifth + y * (seventh + y * ninth)))
        log = np.float32(e) * LN2 + np.float32(2.0) * series
        length = np.float32(math.sqrt(max(np.float32(-2.0) * log, np.float32(0.0))))
        quarter = np.int32(np.int32(v[i] + np.int32(2**29)) >> np.int32(30))
        x = np.float32(np.int32(v[i] - np.int32(quarter << np.int32(30)))) * QUARTER
        y = x * x
        s = np.float32(1 / 120) + y * (np.float32(-1 / 5040) + y * np.float32(1 / 362880))
        c = np.float32(1 / 24) + y * (np.float32(-1 / 720) + y * np.float32(1 / 40320))
        sine = x + x * y * (np.float32(-1 / 6) + y * s)
        cosine = np.float32(1.0) + y * (np.float32(-0.5) + y * c)
        odd = np.int32(quarter & np.int32(1)) == np.int32(1)
        length *= np.float32(1.0) - np.float32(np.int32(quarter & np.int32(2)))
        first[i] = length * (sine if odd else cosine)
        second[i] = length * (cosine if odd else sine)


@part
def normal_row(row: int, key: Any, noise: Any, words: Any) -> None:
    """Normals of one row, of a multiple of GROUP: the k-th of all counters stand in its k-th quarter. Words are (4, BLOCK)."""
    quarter = len(noise) // 4
    for low in range(0, quarter, BLOCK):
        n = min(BLOCK, quarter - low)
        draw_words(row, low, n, key, words)
        for k in range(0, 4, 2):
            first, second = noise[k * quarter + low :], noise[(k + 1) * quarter + low :]
            normal_pairs(words[k], words[k + 1], n, first, second)


def normal_rows(start: int, stop: int, key: Any, noise: Any) -> None:  # pragma: no cover  (compiled)
    """Rows start … stop − 1."""
    words = np.empty((4, BLOCK), np.int32)
    for b in range(start, stop):
        normal_row(b, key, noise[b], words)
