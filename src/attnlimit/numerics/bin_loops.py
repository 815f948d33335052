"""Compiled loops over keys and their bins. Needs numba."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnlimit.numerics.instructions import add_row


def bin_keys(
    start: int,
    stop: int,
    scores: Any,
    low: Any,
    width: Any,
    values: Any,
    product: Any,
    value_square: Any,
    limit_square: Any,
    mass: Any,
    skipped: Any,
    number: Any,
    weight: Any,
    square: Any,
    value: Any,
) -> None:
    """The sums of `binning.Bins`, a query at a time."""
    bins, n, some = number.shape[1], values.shape[1], skipped.size == scores.size
    step = min(1, values.shape[0] - 1)  # 0: all queries share the values
    real = values.dtype.type  # of all constants, or the loops would run in double precision
    zero, one, two, half, sixth, last = real(0), real(1), real(2), real(1 / 2), real(1 / 6), real(1 / 24)
    bin_of, share, square_of = np.empty(n, np.int32), np.empty(n, values.dtype), np.empty(n, values.dtype)
    for i in range(start, stop):
        own, inverse, top = i * step, one / width[i], np.int32(bins - 1)
        for j in range(n):
            place = (scores[i, j] - low[i]) * inverse
            bin_of[j] = min(max(np.int32(place), np.int32(0)), top)  # whatever the score is
            share[j] = (place - real(bin_of[j]) - half) * width[i]
        if width[i] < 0.1001:  # the series is good to 3e-9 up to 0.05
            for j in range(n):
                x = share[j]
                share[j] = one + x * (one + x * (half + x * (sixth + x * last)))
        else:
            for j in range(n):
                share[j] = math.exp(share[j])
        for j in range(n):
            away = max(zero, value_square[own, j] - two * product[i, j] + limit_square[i])
            square_of[j] = mass[j] * share[j] * share[j] * away
            share[j] *= mass[j]
        rows, total = values[own], value[i]
        for j in range(n):
            if some and skipped[i, j]:
                continue
            k = np.uint64(bin_of[j])  # no index from the end is looked for
            number[i, k] += mass[j]
            weight[i, k] += share[j]
            square[i, k] += square_of[j]
            add_row(total, np.int64(k), rows, j, share[j])


def spread_bins(
    start: int,
    stop: int,
    width: Any,
    mass: Any,
    weight: Any,
    square: Any,
    value: Any,
    limit: Any,
    keys: Any,
    spacing: Any,
    fraction: Any,
    number: Any,
    vector: Any,
    out: Any,
) -> None:
    """Bins shared out to the points near them, as `condensed.condensed_bins` says. fraction: 1/Π_{i≠k} (k − i)."""
    bins, near, step = mass.shape[1], fraction.shape[0], spacing[0]
    real, before = value.dtype.type, near // 2 - 1
    last = number.shape[1] - near
    share, pulled, fall = np.empty(near), np.empty(number.shape[1]), np.exp(-step * np.arange(near))
    for i in range(start, stop):
        total = mass[i].sum() / keys[i, 0]
        pulled[:] = 0.0
        for b in range(bins):
            if mass[i, b] <= 0.0:
                continue
            count, heavy = mass[i, b] / total, weight[i, b] / mass[i, b]
            place = ((b + 0.5) * width[i] + math.log(heavy)) / step
            first = max(0, min(last, int(place)))
            x = place - first + before
            rise = math.exp(step * x)
            share[0] = 1.0
            for k in range(1, near):  # products of what is left of each point, then of what is right of it
                share[k] = share[k - 1] * (x - (k - 1))
            right = 1.0
            for k in range(near - 1, -1, -1):
                share[k] *= right * fraction[k]
                right *= x - k
            for k in range(near):
                ratio = rise * fall[k]
                number[i, first + k] += count * share[k]
                out[i, first + k] += count * share[k] * square[i, b] / mass[i, b] * (ratio / heavy) ** 2
                pull = count * share[k] * ratio
                pulled[first + k] += pull
                add_row(vector[i], first + k, value[i], b, real(pull / weight[i, b]))
        for j in range(len(pulled)):
            for c in range(limit.shape[1]):
                vector[i, j, c] -= real(pulled[j]) * limit[i, c]
