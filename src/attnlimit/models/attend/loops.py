"""Compiled loops of sampled attention: from a row of scores (one query of one head) to the keys that it reads, and to its output.

    candidates and split, the top keys → keep, all that is kept → draw, what is drawn beside it → average, the softmax over both

A row sees the keys from `low` to `high`; where it sees fewer, the scores of the others are −∞. Heads of a group keep and draw
together. What a row reads is marked with its own stamp, so that marks need no cleaning. Rows are given by the array and a place:
compiled code is slow at making a view for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlimit.numerics.compiled import part
from attnlimit.numerics.instructions import LANES, prefetch, raise_to, reach, reaching

AHEAD = 16
"""How many keys before it is read a key is asked for."""
LINE = 16
"""Numbers that memory gives at once."""
LOWEST = np.float32(-3.4e38)
LOG2E, LN2_HIGH, LN2_LOW = np.float32(1.442695041), np.float32(0.693359375), np.float32(-2.12194440e-4)


@part
def nth(values: Any, size: int, wanted: int, more: int) -> Any:
    """A number that `wanted` of the first `size` values reach, or at most so many more, or all that are equal to it."""
    low, high = values[0], values[0]
    for k in range(size):
        low = values[k] if values[k] < low else low
        high = values[k] if values[k] > high else high
    middle, halve, below, above = high, False, size, 0  # numbers that reach low and high
    while True:
        number = 0
        for k in range(0, size, LANES):
            number += reach(values, k, size, middle)
        if wanted <= number <= wanted + more:
            return middle
        if number >= wanted:
            low, below = middle, number
        else:
            high, above = middle, number
        share = 0.5 if halve else (wanted + 0.5 * more - above) / (below - above)
        halve = not halve
        middle = high - np.float32(share) * (high - low)
        if not low < middle < high:
            middle = low + np.float32(0.5) * (high - low)
            if not low < middle < high:
                return low


@part
def candidates(scores: Any, r: int, low: int, high: int, wanted: int, work: Any, found: Any) -> int:
    """Finds the places of the `wanted` best scores of a row, and of some others nearly as good."""
    width, least, number = LANES * (wanted // 8 + 1), LOWEST, 0
    if 2 * width < high - low:  # if so many columns have one at least as good, so many keys are
        for c in range(width):
            work[c] = LOWEST
        for j in range(low, high, LANES):
            raise_to(scores, r, j, high, work, (j - low) % width)
        least = nth(work, width, wanted, wanted // 8)
    for j in range(low, high, LANES):
        number = reaching(scores, r, j, high, least, found, number)
    return number


@part
def candidates_of_tiles(
    scores: Any, best: Any, r: int, low: int, high: int, wanted: int, work: Any, found: Any
) -> int:
    """The same, where the best score of every tile of LANES keys is known."""
    first, last, least, number = low // LANES, -(-high // LANES), LOWEST, 0
    if last - first > wanted:
        for tile in range(first, last):
            work[tile - first] = best[r, tile]
        least = nth(work, last - first, wanted, wanted // 8)
    for tile in range(first, last):
        if best[r, tile] >= least:
            edge = tile * LANES
            number = reaching(scores, r, max(edge, low), min(edge + LANES, high), least, found, number)
    return number


@part
def keep(
    scores: Any,
    r: int,
    seen: Any,
    placed: Any,
    found: Any,
    best: int,
    mark: Any,
    stamp: int,
    chosen: Any,
    number: int,
) -> int:
    """Adds to a list what a row keeps: the stretches `placed` (begin, end, begin, …), and the best, as found."""
    low, high = seen[r, 0], seen[r, 1]
    holes = seen[r, 2] < high - low
    for side in range(0, placed.shape[1], 2):
        for j in range(max(placed[r, side], low), min(placed[r, side + 1], high)):
            if mark[j] != stamp and not (holes and scores[r, j] == -np.inf):
                mark[j] = stamp
                chosen[number] = j
                number += 1
    for k in range(best):
        if mark[found[k]] != stamp:
            mark[found[k]] = stamp
            chosen[number] = found[k]
            number += 1
    return number


@part
def draw(
    scores: Any,
    r: int,
    seen: Any,
    n: int,
    order: Any,
    w: int,
    place: int,
    mark: Any,
    stamp: int,
    chosen: Any,
    kept: int,
) -> int:
    """Adds the first n keys of an order from a place on that are seen and not kept."""
    low, high, number, size = seen[r, 0], seen[r, 1], kept, order.shape[1]
    holes = seen[r, 2] < high - low
    if n >= seen[r, 2] - kept:
        for j in range(low, high):
            if mark[j] != stamp and not (holes and scores[r, j] == -np.inf):
                chosen[number] = j
                number += 1
        return number
    for _ in range(size):
        if number - kept == n:
            break
        j = order[w, place]
        place = place + 1 if place + 1 < size else 0
        if low <= j < high and mark[j] != stamp and not (holes and scores[r, j] == -np.inf):
            mark[j] = stamp
            chosen[number] = j
            number += 1
    return number


@part
def exponentials(x: Any, size: int, most: Any, powers: Any, scale: Any) -> Any:
    """x becomes e^(x − most), to float32's precision: 2^k e^r, k whole and |r| ≤ ln 2 / 2. Returns the sum.
    powers and scale: the same room as whole numbers and as others."""
    total = np.float32(0)
    for k in range(size):
        y = max(x[k] - most, np.float32(-87))
        whole = np.floor(y * LOG2E + np.float32(0.5))
        r = y - whole * LN2_HIGH - whole * LN2_LOW
        p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        x[k] = p * r * r + r + np.float32(1)
        powers[k] = np.int32(np.int32(np.int32(whole) + np.int32(127)) << np.int32(23))
    for k in range(size):
        x[k] *= scale[k]
        total += x[k]
    return total


@part
def average(
    share: Any,
    size: int,
    chosen: Any,
    sink: Any,
    values: Any,
    pair: int,
    powers: Any,
    scale: Any,
    out: Any,
    r: int,
) -> None:
    """out = Σ e^share v / (e^sink + Σ e^share) over the chosen keys, four at a time."""
    most, dv = sink, out.shape[1]
    for k in range(size):
        most = share[k] if share[k] > most else most
    for x in range(dv):
        out[r, x] = np.float32(0)
    if most == -np.inf:
        return
    inverse = np.float32(1) / (exponentials(share, size, most, powers, scale) + np.exp(sink - most))
    for k in range(size, -(-size // 4) * 4):
        share[k], chosen[k] = np.float32(0), chosen[0]
    for k in range(0, size, 4):
        a, b, c, d = (
            share[k] * inverse,
            share[k + 1] * inverse,
            share[k + 2] * inverse,
            share[k + 3] * inverse,
        )
        i, j, o, u = chosen[k], chosen[k + 1], chosen[k + 2], chosen[k + 3]
        for x in range(dv):
            first, second = (
                a * values[pair, i, x] + b * values[pair, j, x],
                c * values[pair, o, x] + d * values[pair, u, x],
            )
            out[r, x] += first + second


@part
def split(scores: Any, r: int, wanted: int, work: Any, found: Any, others: Any, number: int) -> int:
    """Leaves the `wanted` best of what was found, and puts the others into `others`."""
    if number <= wanted:
        return number
    least, above, kept, gone = LOWEST, 0, 0, 0
    if wanted > 0:
        for k in range(number):
            work[k] = scores[r, found[k]]
        least = nth(work, number, wanted, 0)
        for k in range(number):
            above += work[k] > least
    equal = wanted - above
    for k in range(number):
        same = work[k] == least
        best = (work[k] > least) | (same & (equal > 0)) if wanted > 0 else False
        equal -= best & same
        place = found[k]
        found[kept], others[gone] = place, place  # one of them is written over
        kept, gone = kept + best, gone + (not best)
    return kept


@part
def choose(
    scores: Any,
    best: Any,
    r: int,
    step: int,
    group: int,
    seen: Any,
    placed: Any,
    top: Any,
    n: Any,
    order: Any,
    begin: Any,
    mark: Any,
    work: Any,
    found: Any,
    others: Any,
    chosen: Any,
) -> Any:
    """Lists what the rows r, r + step, … of a group read: how many are kept, and how many these are with the drawn ones.
    best: of every tile of keys, if there is any; from mark on: room to work in."""
    kept, stamp = 0, r + 1
    for row in range(r, r + group * step, step):
        number = 0
        if top[row] > 0:
            low, high = seen[row, 0], seen[row, 1]
            if best.shape[1] > 0:
                number = candidates_of_tiles(scores, best, row, low, high, top[row], work, found)
            else:
                number = candidates(scores, row, low, high, top[row], work, found)
            number = split(scores, row, top[row], work, found, others, number)
        kept = keep(scores, row, seen, placed, found, number, mark, stamp, chosen, kept)
    return kept, draw(scores, r, seen, n[r], order, r // (step * group), begin[r], mark, stamp, chosen, kept)


@part
def stands_for(weighs: Any, seen: int, kept: int, total: int) -> Any:
    """log of the keys that a drawn one stands for."""
    return np.float32(np.log((seen - kept) / (total - kept)) if weighs and total > kept else 0.0)


def attend_texts(
    start: int,
    stop: int,
    scores: Any,
    values: Any,
    seen: Any,
    placed: Any,
    top: Any,
    n: Any,
    order: Any,
    begin: Any,
    rest: Any,
    sink: Any,
    out: Any,
    read: Any,
    together: Any,
) -> None:
    """Outputs of rows (texts, heads, m), and how many keys they read: each, and those of a key head together, (key heads, m).
    One step is one query of all heads of a key head."""
    keys, m = scores.shape[1], together.shape[1]
    per_key, group = len(scores) // (len(values) * m), len(scores) // (len(order) * m)
    best, mark, union = np.empty((0, 0), np.float32), np.zeros(keys, np.int64), np.full(keys, -1, np.int64)
    chosen, powers = np.empty(keys + 3, np.int32), np.empty(keys, np.int32)
    scale = powers.view(np.float32)
    found, others = np.empty(keys + 1, np.int32), np.empty(keys + 1, np.int32)
    work, share = np.empty(keys, np.float32), np.empty(keys + 3, np.float32)
    for unit in range(start, stop):
        pair, i = unit // m, unit % m
        together[pair, i] = 0
        for first in range(pair * per_key, (pair + 1) * per_key, group):
            r = first * m + i
            kept, total = choose(
                scores,
                best,
                r,
                m,
                group,
                seen,
                placed,
                top,
                n,
                order,
                begin,
                mark,
                work,
                found,
                others,
                chosen,
            )
            more = stands_for(rest[r], seen[r, 2], kept, total)
            for row in range(r, r + group * m, m):
                for k in range(total):
                    share[k] = scores[row, chosen[k]]
                for k in range(kept, total):
                    share[k] += more
                average(share, total, chosen, sink[row], values, pair, powers, scale, out, row)
                read[row] = total
            if group == per_key:
                together[pair, i] = total
                continue
            for k in range(total):
                together[pair, i] += union[chosen[k]] != unit
                union[chosen[k]] = unit


@part
def exact_score(query: Any, r: int, key: Any, pair: int, j: int, numbers: Any) -> Any:
    """numbers: the scale of scores and their cap (0: none)."""
    score = np.float32(0)
    for x in range(key.shape[2]):
        score += query[r, x] * key[pair, j, x]
    score *= numbers[0]
    return numbers[1] * np.tanh(score / numbers[1]) if numbers[1] > 0 else score


def attend_steps(
    start: int,
    stop: int,
    query: Any,
    key: Any,
    values: Any,
    scores: Any,
    best: Any,
    seen: Any,
    placed: Any,
    top: Any,
    n: Any,
    order: Any,
    begin: Any,
    rest: Any,
    numbers: Any,
    sink: Any,
    out: Any,
    chosen: Any,
    read: Any,
) -> None:
    """The same for one query a head, chosen by the scores of int8 copies: exact scores and values are read of chosen keys only.
    One step is a group of heads; what it reads is listed."""
    keys, d, dv, group, per_key = (
        scores.shape[1],
        key.shape[2],
        values.shape[2],
        len(query) // len(read),
        len(query) // len(key),
    )
    mark = np.zeros(keys, np.int64)
    listed, powers = np.empty(keys + 3, np.int32), np.empty(keys, np.int32)
    found, others = np.empty(keys + 1, np.int32), np.empty(keys + 1, np.int32)
    work, share = np.empty(keys, np.float32), np.empty((group, keys + 3), np.float32)
    flat_keys, flat_values = key.reshape(-1), values.reshape(-1)
    for u in range(start, stop):
        r, pair = u * group, u * group // per_key
        kept, total = choose(
            scores, best, r, 1, group, seen, placed, top, n, order, begin, mark, work, found, others, listed
        )
        more = stands_for(rest[r], seen[r, 2], kept, total)
        for k in range(total):
            j, later = listed[k], np.int64(pair * key.shape[1] + listed[min(k + AHEAD, total - 1)])
            for line in range(0, d, LINE):
                prefetch(flat_keys, later * d + line)
            for line in range(0, dv, LINE):  # for the average
                prefetch(flat_values, later * dv + line)
            for g in range(group):
                share[g, k] = exact_score(query, r + g, key, pair, j, numbers) + (
                    more if k >= kept else np.float32(0)
                )
        for g in range(group):
            average(
                share[g],
                total,
                listed,
                sink[r + g],
                values,
                pair,
                powers,
                powers.view(np.float32),
                out,
                r + g,
            )
        read[u] = total
        chosen[u, :total] = listed[:total]


def count_together(start: int, stop: int, chosen: Any, read: Any, keys: Any, together: Any) -> None:
    """How many different keys the groups of heads of each key head have chosen; keys: so many there are."""
    union, groups = np.full(len(keys), -1, np.int64), len(read) // len(together)
    for pair in range(start, stop):
        together[pair] = 0
        for u in range(pair * groups, (pair + 1) * groups):
            for k in range(read[u]):
                together[pair] += union[chosen[u, k]] != pair
                union[chosen[u, k]] = pair


@part
def peel(value: Any, share: Any, free: Any, found: Any, size: int, wanted: int) -> Any:
    """Leaves the `wanted` best of a list in one row of scores, with their shares and whether they are free. Returns how many these
    are; and of those that went, how many were free, and the sums of their shares and of the squares."""
    least, left = np.float32(3.4e38), 0
    if wanted > 0:
        least = nth(value[0], size, wanted, 0)
        for k in range(0, size, LANES):
            left = reaching(value, 0, k, size, least, found, left)
    number, once, twice, kept = 0.0, 0.0, 0.0, 0
    for k in range(size):
        gone = free[k] * (value[0, k] < least)
        number += gone
        once += gone * share[k]
        twice += gone * share[k] * share[k]
    for k in range(left):
        place = found[k]
        if left - k + kept > wanted and value[0, place] == least:  # equal ones for which there is no room
            number += free[place]
            once += free[place] * share[place]
            twice += free[place] * share[place] * share[place]
        else:
            value[0, kept], share[kept], free[kept] = value[0, place], share[place], free[place]
            kept += 1
    return kept, number, once, twice


def rest_sums(
    start: int, stop: int, scores: Any, part: Any, seen: Any, placed: Any, tops: Any, out: Any
) -> None:
    """Number, Σ part and Σ part² over what is seen and not `placed`, without the best tops[k], the lightest first. Scores of hidden
    keys are −∞."""
    keys = scores.shape[1]
    mark, found = np.zeros(keys, np.int64), np.empty(keys, np.int32)
    value, share, free = (
        np.empty((1, keys), np.float32),
        np.empty(keys, np.float32),
        np.empty(keys, np.float32),
    )
    for r in range(start, stop):
        low, high, size = seen[r, 0], seen[r, 1], 0
        for side in range(0, placed.shape[1], 2):
            for j in range(max(placed[r, side], low), min(placed[r, side + 1], high)):
                mark[j] = r + 1
        for j in range(low, high, LANES):
            size = reaching(scores, r, j, high, LOWEST, found, size)
        for k in range(size):
            j = found[k]
            value[0, k], share[k], free[k] = scores[r, j], part[r, j], np.float32(mark[j] != r + 1)
        number, once, twice = 0.0, 0.0, 0.0
        for k in range(len(tops) - 1, -1, -1):
            if size > tops[k]:
                size, more, first, second = peel(value, share, free, found, size, tops[k])
                number, once, twice = number + more, once + first, twice + second
            out[r, 0, k], out[r, 1, k], out[r, 2, k] = number, once, twice
