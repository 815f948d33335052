"""Compiled loops over keys and their bins. Needs numba."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnlimit.numerics.compiled import part
from attnlimit.numerics.instructions import add_row

LINE = 64
"""Bytes."""


@part
def _place(scores: Any, low: Any, width: Any, top: Any, bin_of: Any, share: Any) -> None:
    """The bin of each key, and e^{z − c}, z its score and c the bin's centre."""
    real = share.dtype.type  # of all constants, or the loops would run in double precision
    one, half, third, fourth, fifth = real(1), real(1 / 2), real(1 / 6), real(1 / 24), real(1 / 120)
    inverse = one / width
    for j in range(len(scores)):
        place = (scores[j] - low) * inverse
        bin_of[j] = min(max(np.int32(place), np.int32(0)), np.int32(top))  # whatever the score is
        share[j] = (place - real(bin_of[j]) - half) * width
    if width < 0.1001:  # the series is good to 3e-11 up to 0.05
        for j in range(len(scores)):
            x = share[j]
            share[j] = one + x * (one + x * (half + x * (third + x * (fourth + x * fifth))))
    else:
        for j in range(len(scores)):
            share[j] = math.exp(share[j])


@part
def _add_up(
    bin_of: Any, share: Any, away: Any, mass: Any, skipped: Any, rows: Any, sums: Any, value: Any
) -> None:
    """Of each bin Σ mass, Σ mass·w and Σ mass·w²‖u‖²; and Σ mass·w·value, in a loop of its own, which is faster."""
    sums[:], value[:] = 0, 0
    some = len(skipped) == len(share)
    for j in range(len(share)):
        if some and skipped[j]:
            continue
        k = np.uint64(bin_of[j])  # no index from the end is looked for
        sums[k, 0] += mass[j]
        sums[k, 1] += share[j]
        sums[k, 2] += away[j]
    for j in range(len(share)):
        if not (some and skipped[j]):
            add_row(value, np.int64(np.uint64(bin_of[j])), rows, j, share[j])


@part
def _halve(sums: Any, value: Any, width: Any) -> None:
    """Two bins as one, whose centre is where they meet."""
    real = value.dtype.type
    up = math.exp(0.5 * width)
    down = 1.0 / up
    for b in range(len(sums) // 2):
        sums[b, 0] = sums[2 * b, 0] + sums[2 * b + 1, 0]
        sums[b, 1] = down * sums[2 * b, 1] + up * sums[2 * b + 1, 1]
        sums[b, 2] = down * down * sums[2 * b, 2] + up * up * sums[2 * b + 1, 2]
        for c in range(value.shape[1]):
            value[b, c] = real(down) * value[2 * b, c] + real(up) * value[2 * b + 1, c]


@part
def _share_out(
    sums: Any,
    value: Any,
    width: Any,
    keys: Any,
    step: Any,
    fraction: Any,
    part: Any,
    number: Any,
    vector: Any,
    square: Any,
    pulled: Any,
) -> None:
    """Bins shared out to the points near them, as `condensed.condensed_keys` says. fraction: 1/Π_{i≠k} (k − i)."""
    near, real = len(fraction), value.dtype.type
    before, last, fall = near // 2 - 1, len(number) - near, math.exp(-step)
    total = 0.0
    for b in range(len(sums)):
        total += sums[b, 0]
    each, inverse = keys / total, 1.0 / step
    for b in range(len(sums)):
        mass, weight, squares = sums[b, 0], sums[b, 1], sums[b, 2]
        if mass <= 0.0:
            continue
        centre = (b + 0.5) * width
        place = (centre + math.log(weight / mass)) * inverse
        first = max(0, min(last, int(place)))
        x = place - first + before
        part[0] = each
        for k in range(1, near):  # products of what is left of each point, then of what is right of it
            part[k] = part[k - 1] * (x - (k - 1))
        right = 1.0
        for k in range(near - 1, -1, -1):
            part[k] *= right * fraction[k]
            right *= x - k
        ratio = math.exp(centre - step * (first - before))  # of weights: of the bin's centre and of a point
        for k in range(near):
            number[first + k] += part[k] * mass
            pulled[first + k] += part[k] * ratio * weight
            square[first + k] += part[k] * ratio * ratio * squares
            add_row(vector, first + k, value, b, real(part[k] * ratio))
            ratio *= fall


def condense_keys(
    start: int,
    stop: int,
    scores: Any,
    low: Any,
    width: Any,
    bins: Any,
    values: Any,
    product: Any,
    value_square: Any,
    limit: Any,
    mass: Any,
    skipped: Any,
    keys: Any,
    step: Any,
    fraction: Any,
    number: Any,
    vector: Any,
    square: Any,
) -> None:
    """Keys binned by score, and bins shared out to points, a query at a time; once more with half the bins where there is room for more
    queries than there are."""
    n, p = values.shape[1:]
    real, shared = values.dtype.type, values.shape[0] == 1
    bin_of, share, away = np.empty(n, np.int32), np.empty(n, values.dtype), np.empty(n, values.dtype)
    room = 0
    for i in range(start, stop):  # numba takes a second to compile max()
        room = max(room, bins[i])
    sums, memory = np.empty((room, 3)), np.empty(room * p + LINE, values.dtype)
    ahead = (-memory.ctypes.data % LINE) // memory.itemsize  # rows that begin with a cache line are faster
    value = memory[ahead : ahead + room * p].reshape(room, p)
    part, pulled = np.empty(len(fraction)), np.empty(number.shape[1])
    for i in range(start, stop):
        own, size = 0 if shared else i, real(0)
        for c in range(p):
            size += limit[i, c] * limit[i, c]
        _place(scores[i], low[i], width[i], bins[i] - 1, bin_of, share)
        for j in range(n):
            far = max(real(0), value_square[own, j] - real(2) * product[i, j] + size)
            away[j] = share[j] * share[j] * mass[j] * far
            share[j] *= mass[j]
        inside, rows = sums[: bins[i]], value[: bins[i]]
        hidden = skipped[min(i, len(skipped) - 1)]
        _add_up(bin_of, share, away, mass, hidden, values[own], inside, rows)
        for k in range(i, len(number), len(scores)):
            if k > i:
                _halve(inside, rows, width[i])
            count, wide = (bins[i], width[i]) if k == i else (bins[i] // 2, width[i] + width[i])
            pulled[:] = 0.0
            points = number[k], vector[k], square[k], pulled
            _share_out(inside[:count], rows[:count], wide, keys[i, 0], step[0], fraction, part, *points)
            for j in range(len(pulled)):
                add_row(vector[k], j, limit, i, real(-pulled[j]))
