"""Compiled loops of sampled attention, over rows: a row is one query of one head, and heads of a group are neighbours.

    scores of all keys with the best of every tile   (tile: from matrix products; copy and scan: from int8 copies)
    → rest, sums over what would be left beside several tops, for queries that choose among them
    → keep, what is kept → draw, what is drawn, and the list of both
    → attention over the list   (weigh: as weights of all keys for a matrix product; attend: reading those keys only)

What a row sees is given by (first key, end, how many of these). Marks of keys: 1 kept, 2 drawn, 3 not seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlimit.numerics.prefetch import prefetch

STRETCH = 2048
"""Keys that one step of the scan goes over."""
TILE = 16
"""Keys whose best score is noted together."""
PROBES = 8
"""Old keys that are compared with their copies in every step, at the end and spread over the rest, each."""
BINS = 1024
"""Of a histogram of scores."""
DEPTH = 40.0
"""Scores so much below the best are one bin: they weigh nothing."""
AHEAD = 16
"""How many keys before it is read a key is asked for."""
LINE = 16
"""Numbers that memory gives at once."""


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
                row, most = scores[p * groups + g], np.int32(-(2**31) + 1)
                for j in range(begin, end):
                    total = np.int32(0)
                    for x in range(d):  # the casts leave it in 32 bits: pairs of products in one instruction
                        total = np.int32(total + np.int32(np.int32(q[g, x]) * np.int32(kept[j, x])))
                    row[j] = total
                    most = max(most, total)
                best[p * groups + g, tile] = most


def tile(start: int, stop: int, scores: Any, seen: Any, best: Any) -> None:
    """The best of every TILE scores; those of hidden keys are −∞."""
    for r in range(start, stop):
        row, low, high = scores[r], seen[r, 0], seen[r, 1]
        for one in range(low // TILE, -(-high // TILE)):
            most = np.float32(-3e38)
            for j in range(max(one * TILE, low), min(one * TILE + TILE, high)):
                most = max(most, row[j])
            best[r, one] = most


def keep(start: int, stop: int, scores: Any, best: Any, seen: Any, placed: Any, top: Any, marks: Any) -> None:
    """Marks what groups of rows keep: stretches `placed` for their place (begin, end, begin, …), and the `top` best."""
    group, keys = scores.shape[0] // marks.shape[0], scores.shape[1]
    found, values, close = (
        np.empty(keys, np.int64),
        np.empty(keys, scores.dtype),
        np.empty(keys, scores.dtype),
    )
    bins: Any = np.empty(BINS, np.int64)
    for r in range(start * group, stop * group):
        low, high, mark, row = seen[r, 0], seen[r, 1], marks[r // group], scores[r]
        if r % group == 0:
            mark[:] = 0
            if seen[r, 2] < high - low:
                for j in range(low, high):
                    mark[j] = 0 if row[j] > -np.inf else 3
        for side in range(0, placed.shape[1], 2):
            for j in range(max(placed[r, side], low), min(placed[r, side + 1], high)):
                mark[j] = max(mark[j], 1)
        wanted, first, number = min(top[r], seen[r, 2]), low // TILE, 0
        if wanted <= 0:
            continue
        tiles = best[r, first : -(-high // TILE)]
        least = tiles.min()
        if len(tiles) > wanted:  # if so many tiles have one at least as good, so many keys are
            worst, scale = least, (BINS - 1) / (np.float64(tiles.max()) - least + 1e-30)
            bins[:] = 0
            for one in tiles:
                bins[min(max(np.int64((np.float64(one) - worst) * scale), 0), BINS - 1)] += 1  # nan too
            above, bin = 0, BINS
            while above < wanted and bin > 0:
                bin -= 1
                above += bins[bin]
            least = tiles.max()
            for one in tiles:
                if np.int64((np.float64(one) - worst) * scale) >= bin:
                    least = min(least, one)
        few = len(tiles) <= wanted
        for k in range(len(tiles)):
            if few or tiles[k] >= least:
                edge = (first + k) * TILE
                for j in range(max(edge, low), min(edge + TILE, high)):
                    if row[j] > -np.inf if few else row[j] >= least:
                        found[number], values[number] = j, row[j]
                        number += 1
        whole = number <= wanted
        if not whole:  # bins tell in which of them the last one is that is kept
            worst, scale = values[0], np.float64(values[0])
            for k in range(number):
                worst, scale = min(worst, values[k]), max(scale, np.float64(values[k]))
            scale = (BINS - 1) / (scale - worst + 1e-30)
            bins[:] = 0
            for k in range(number):
                bins[min(max(np.int64((np.float64(values[k]) - worst) * scale), 0), BINS - 1)] += 1
            bin, above = BINS - 1, 0
            while above + bins[bin] < wanted:
                above += bins[bin]
                bin -= 1
            size = 0
            for k in range(number):
                if min(max(np.int64((np.float64(values[k]) - worst) * scale), 0), BINS - 1) == bin:
                    close[size] = values[k]
                    size += 1
            least = np.sort(close[:size])[size - (wanted - above)]
        for equal in (
            False,
            True,
        ):  # above the least, then as many of those that are equal as there is room for
            for k in range(number if wanted > 0 else 0):
                if wanted > 0 and (whole or (values[k] == least if equal else values[k] > least)):
                    mark[found[k]] = 1
                    wanted -= 1


def draw(
    start: int, stop: int, seen: Any, n: Any, order: Any, begin: Any, marks: Any, chosen: Any, counts: Any
) -> None:
    """Marks what groups of rows draw, the first n unmarked keys of an order from a place on, and lists all that is read in the
    order of the keys, drawn ones as −1 − place. counts: how many are kept, drawn, and left to be drawn from."""
    group, size, same = seen.shape[0] // counts.shape[0], order.shape[1], counts.shape[0] // order.shape[0]
    for u in range(start, stop):
        low, high, mark, walk = seen[u * group, 0], seen[u * group, 1], marks[u], order[u // same]
        kept = 0
        for j in range(low, high):
            kept += mark[j] == 1
        left = seen[u * group, 2] - kept
        drawn = min(left, n[u])
        counts[u, 0], counts[u, 1], counts[u, 2] = kept, drawn, left
        place, number = begin[u], 0
        while number < drawn < left:
            j = walk[place]
            place = place + 1 if place + 1 < size else 0
            if low <= j < high and mark[j] == 0:
                mark[j] = 2
                number += 1
        number, everything, words = 0, drawn == left, mark.view(np.int64)
        for word in range(low // 8, -(-high // 8)):
            if words[word] != 0 or everything:
                for j in range(max(word * 8, low), min(word * 8 + 8, high)):
                    if mark[j] == 0 and everything:
                        mark[j] = 2
                    if mark[j] == 1 or mark[j] == 2:
                        chosen[u, number] = j if mark[j] == 1 else -1 - j
                        number += 1


def rest(start: int, stop: int, scores: Any, part: Any, seen: Any, placed: Any, tops: Any, out: Any) -> None:
    """Number, Σ part and Σ part² over what is seen and not `placed`, without the best tops[k], the lightest first: in the order of
    bins of scores, and of the scores themselves in the bins where a top ends. Scores of hidden keys are −∞."""
    keys = scores.shape[1]
    bin_of, places, free = np.empty(keys, np.int32), np.empty(keys, np.int32), np.empty(keys, np.bool_)
    ends = np.empty(BINS + 1, np.int64)
    for r in range(start, stop):
        row, low, high = scores[r], seen[r, 0], seen[r, 1]
        free[low:high] = True
        for side in range(0, placed.shape[1], 2):
            free[max(placed[r, side], low) : max(min(placed[r, side + 1], high), low)] = False
        least, most = np.float32(3e38), np.float32(-3e38)
        for j in range(low, high):
            least, most = min(least, row[j]), max(most, row[j])
        least = max(least, most - np.float32(DEPTH))
        scale, total = np.float32(BINS - 1) / max(most - least, np.float32(1e-30)), 0
        ends[:] = 0
        for j in range(low, high):
            bin_of[j] = min(max(np.int32((row[j] - least) * scale), 0), BINS - 1)
            if row[j] > -np.inf:
                ends[bin_of[j] + 1] += 1
                total += 1
        if total == 0:
            out[r] = 0.0
            continue
        for b in range(BINS):
            ends[b + 1] += ends[b]
        for j in range(low, high):
            if row[j] > -np.inf:
                places[ends[bin_of[j]]] = j
                ends[bin_of[j]] += 1
        done, number, once, twice = 0, 0.0, 0.0, 0.0
        for k in range(tops.shape[0] - 1, -1, -1):
            lighter = max(total - tops[k], 0)
            b = bin_of[places[max(lighter - 1, 0)]]
            begin, end = max(done, ends[b - 1] if b > 0 else 0), ends[b]
            gap = (end - begin) // 2 if done < lighter < end else 0
            while gap > 0:  # sorted by insertion, in smaller and smaller steps
                for a in range(begin + gap, end):
                    j, c = places[a], a
                    while c >= begin + gap and row[places[c - gap]] > row[j]:
                        places[c] = places[c - gap]
                        c -= gap
                    places[c] = j
                gap //= 2
            for a in range(done, lighter):
                j = places[a]
                if free[j]:
                    number += 1.0
                    once += part[r, j]
                    twice += part[r, j] * part[r, j]
            done = lighter
            out[r, 0, k], out[r, 1, k], out[r, 2, k] = number, once, twice


def weigh(start: int, stop: int, scores: Any, chosen: Any, counts: Any, rest: Any, sink: Any) -> None:
    """Softmax over what is read, in place of the scores: nothing for other keys."""
    group, most_read = scores.shape[0] // counts.shape[0], chosen.shape[1]
    share = np.empty(most_read, np.float32)
    for r in range(start * group, stop * group):
        u, row, most = r // group, scores[r], sink[r]
        size, more = counts[u, 0] + counts[u, 1], np.float32(0)
        if rest[u] and counts[u, 1] > 0:
            more = np.float32(np.log(counts[u, 2] / counts[u, 1]))
        for k in range(size):
            j = chosen[u, k]
            share[k] = row[j] if j >= 0 else row[-1 - j] + more
            most = max(most, share[k])
        mass = np.exp(sink[r] - most) if size > 0 else np.float32(1)
        for k in range(size):
            share[k] = np.exp(share[k] - most)
            mass += share[k]
        row[:] = 0.0
        for k in range(size):
            row[max(chosen[u, k], -1 - chosen[u, k])] = share[k] / mass


def attend(
    start: int,
    stop: int,
    query: Any,
    key: Any,
    value: Any,
    chosen: Any,
    counts: Any,
    rest: Any,
    numbers: Any,
    sink: Any,
    weights: Any,
    out: Any,
) -> None:
    """Softmax over the chosen keys, drawn ones weighing for all that is left where `rest` says so.
    numbers: the scale of scores and their cap (0: none)."""
    heads, per_key = query.shape[0] // key.shape[0], query.shape[0] // (key.shape[0] * key.shape[1])
    group, d, dv = query.shape[0] // counts.shape[0], key.shape[3], value.shape[3]
    scale, cap = numbers[0], numbers[1]
    for u in range(start, stop):
        text, head = u * group // heads, u * group % heads // per_key
        keys, values, size = key[text, head], value[text, head], counts[u, 0] + counts[u, 1]
        flat_keys, flat_values = keys.reshape(-1), values.reshape(-1)
        more = np.float32(0)
        if rest[u] and counts[u, 1] > 0:
            more = np.float32(np.log(counts[u, 2] / counts[u, 1]))
        for k in range(size):
            j, later = np.int64(chosen[u, k]), np.int64(chosen[u, min(k + AHEAD, size - 1)])
            added = more if j < 0 else np.float32(0)
            row, later = np.uint64(max(j, -1 - j)), max(later, -1 - later)
            for line in range(0, d, LINE):
                prefetch(flat_keys, later * d + line)
            for line in range(0, dv, LINE):  # for the next loop
                prefetch(flat_values, later * dv + line)
            for g in range(group):
                total = np.float32(0)
                for x in range(d):
                    total += query[u * group + g, x] * keys[row, x]
                total *= scale
                weights[u, g, k] = (cap * np.tanh(total / cap) if cap > 0 else total) + added
        for g in range(group):
            share, most = weights[u, g, :size], sink[u * group + g]
            for k in range(size):
                most = max(most, share[k])
            mass = np.exp(sink[u * group + g] - most) if size > 0 else np.float32(1)
            for k in range(size):
                share[k] = np.exp(share[k] - most)
                mass += share[k]
            share /= mass
            out[u * group + g, :] = 0.0
        for k in range(size):
            j, later = np.int64(chosen[u, k]), np.int64(chosen[u, min(k + AHEAD, size - 1)])
            row, later = np.uint64(max(j, -1 - j)), max(later, -1 - later)
            for line in range(0, dv, LINE):
                prefetch(flat_values, later * dv + line)
            for g in range(group):
                weight = weights[u, g, k]
                for x in range(dv):
                    out[u * group + g, x] += weight * values[row, x]
