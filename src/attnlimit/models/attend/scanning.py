"""Compiled loops over int8 copies of keys: to keep them as the keys are, and to score all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

STRETCH = 2048
"""Keys that one step of the scan goes over."""
TILE = 16
"""Keys whose best score is noted together."""
PROBES = 8
"""Old keys that are compared with their copies in every step, at the end and spread over the rest, each."""


def copy(start: int, stop: int, key: Any, limits: Any, unit: Any, copies: Any) -> None:
    """Copies of keys in int8, unit by dimension, for those that came since, or for all where old ones are not what they were.
    limits: keys copied before, keys now."""
    heads, d, old, new = key.shape[1], key.shape[3], limits[0], limits[1]
    inverse = np.empty(d, np.float32)
    for p in range(start, stop):
        rows, kept = key[p // heads, p % heads], copies[p]
        inverse[:] = np.float32(1) / unit[p]
        differ = 0
        for probe in range(2 * PROBES if old > 0 else 0):
            j = max(old - 1 - probe, 0) if probe < PROBES else (probe - PROBES) * old // PROBES
            for x in range(d):
                level = np.floor(rows[j, x] * inverse[x] + np.float32(0.5))
                differ += kept[j, x] != np.int8(min(max(level, np.float32(-127)), np.float32(127)))
        again = old == 0 or differ > 0
        if again:
            unit[p, :] = 0.0
            for j in range(new):
                for x in range(d):
                    unit[p, x] = max(unit[p, x], abs(rows[j, x]))
            for x in range(d):
                unit[p, x] = unit[p, x] / np.float32(127) if unit[p, x] > 0 else np.float32(1)
                inverse[x] = np.float32(1) / unit[p, x]
        for j in range(0 if again else old, new):
            for x in range(d):
                level = np.floor(rows[j, x] * inverse[x] + np.float32(0.5))
                kept[j, x] = np.int8(min(max(level, np.float32(-127)), np.float32(127)))


def scan(
    start: int, stop: int, query: Any, unit: Any, copies: Any, seen: Any, scores: Any, best: Any
) -> None:
    """Whole-number scores of all keys seen, (texts × heads, keys), and the best of every TILE of them."""
    pairs, d, steps = copies.shape[0], copies.shape[2], -(-scores.shape[1] // STRETCH)
    groups = query.shape[0] // pairs
    levels = np.float32(min(32767, 2**31 // (127 * d) - 1))
    q = np.empty((groups, d), np.int16)
    for place in range(start, stop):
        p, first = place // steps, place % steps * STRETCH
        kept = copies[p]
        for g in range(groups):
            largest = np.float32(1e-30)
            for x in range(d):
                largest = max(largest, abs(query[p * groups + g, x] * unit[p, x]))
            for x in range(d):
                q[g, x] = np.int16(query[p * groups + g, x] * unit[p, x] / largest * levels)
        low, high = seen[p * groups, 0], seen[p * groups, 1]
        for tile in range(first // TILE, -(-min(first + STRETCH, scores.shape[1]) // TILE)):
            begin, end = max(tile * TILE, low), min(tile * TILE + TILE, high)
            for g in range(groups):
                r, most = p * groups + g, np.int32(-(2**31) + 1)
                for j in range(begin, end):
                    total = np.int32(0)
                    for x in range(d):  # the casts leave it in 32 bits: pairs of products in one instruction
                        total = np.int32(total + np.int32(np.int32(q[g, x]) * np.int32(kept[j, x])))
                    scores[r, j] = np.float32(total)
                    most = max(most, total)
                best[r, tile] = np.float32(most)
