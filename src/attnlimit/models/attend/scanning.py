"""Compiled loops over int8 copies of keys: to keep them as the keys are, and to score all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlimit.numerics.compiled import part
from attnlimit.numerics.instructions import LANES, prefetch, three_tile_scores, tile_scores

STRETCH = 128
"""Tiles, of LANES keys each, that one step of the scan goes over."""
AHEAD = 4
"""How many tiles before it is read a tile is asked for."""
LINE = 64
"""Bytes that memory gives at once."""
LOWEST = np.float32(-3.4e38)
PROBES = 8
"""Old keys that are compared with their copies in every step, at the end and spread over the rest, each."""


@part
def level(number: Any, inverse: Any) -> Any:
    """In int8."""
    whole = np.floor(number * inverse + np.float32(0.5))
    return np.int8(min(max(whole, np.float32(-127)), np.float32(127)))


@part
def differs(rows: Any, kept: Any, inverse: Any, old: int) -> bool:
    """Whether a probed copy is not what its key is now."""
    differ = 0
    for probe in range(2 * PROBES):
        j = max(old - 1 - probe, 0) if probe < PROBES else (probe - PROBES) * old // PROBES
        for x in range(rows.shape[1]):
            differ += kept[j // LANES, x, j % LANES] != level(rows[j, x], inverse[x])
    return differ > 0


def copy(start: int, stop: int, key: Any, limits: Any, unit: Any, copies: Any) -> None:
    """Copies of keys in int8, unit by dimension, for those that came since, or for all where old ones are not what they were.
    limits: keys copied before, keys now. key: (pairs, keys and more, d). copies: (pairs, tiles, d, LANES)."""
    d, old, new = key.shape[2], limits[0], limits[1]
    inverse = np.empty(d, np.float32)
    for p in range(start, stop):
        rows, kept = key[p], copies[p]
        inverse[:] = np.float32(1) / unit[p]
        again = old == 0 or differs(rows, kept, inverse, old)
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
                kept[j // LANES, x, j % LANES] = level(rows[j, x], inverse[x])


def scan(
    start: int, stop: int, query: Any, unit: Any, copies: Any, seen: Any, scores: Any, best: Any
) -> None:
    """Scores of all keys seen by their copies, (texts × heads, room), and the best of every tile."""
    pairs, tiles, d = copies.shape[:3]
    steps, groups, flat = -(-tiles // STRETCH), len(query) // pairs, copies.reshape(-1)
    q = np.empty((groups, d), np.float32)
    for place in range(start, stop):
        p, first = place // steps, place % steps * STRETCH
        low, high = seen[p * groups, 0], seen[p * groups, 1]
        for g in range(groups):
            for x in range(d):
                q[g, x] = query[p * groups + g, x] * unit[p, x]
        for tile in range(max(first, low // LANES), min(first + STRETCH, -(-high // LANES))):
            t, g = p * tiles + tile, 0
            for x in range(0, d, LINE // LANES):
                prefetch(flat, ((t + AHEAD) * d + x) * LANES)
            while g < groups:
                r = p * groups + g
                if g + 3 <= groups:
                    three_tile_scores(
                        flat, t, q, g, scores, r * scores.shape[1] + tile * LANES, best, r * tiles + tile
                    )
                    g += 3
                else:
                    tile_scores(
                        flat, t, q, g, scores, r * scores.shape[1] + tile * LANES, best, r * tiles + tile
                    )
                    g += 1
            if tile * LANES < low or (tile + 1) * LANES > high:
                for r in range(p * groups, (p + 1) * groups):
                    best[r, tile] = LOWEST
                    for j in range(max(tile * LANES, low), min((tile + 1) * LANES, high)):
                        best[r, tile] = max(best[r, tile], scores[r, j])
