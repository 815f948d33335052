"""Keys binned by score, for each query: the sums that the finite-n error needs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.numerics.compiled import has_numba, run_compiled


class BinSums(NamedTuple):
    """For each query and bin of centre c, over the keys with score z in it and w = e^{z − c}."""

    mass: Float[Tensor, "m b"]
    """Σ mass."""
    weight: Float[Tensor, "m b"]
    """Σ mass·w."""
    square: Float[Tensor, "m b"]
    """Σ mass·w² ‖value − limit‖²."""
    value: Float[Tensor, "m b p"]
    """Σ mass·w value."""


def bin_by_score(
    scores: Float[Tensor, "m n"],
    low: Float[Tensor, " m"],
    width: Float[Tensor, " m"],
    bins: int,
    values: Float[Tensor, "#m n p"],
    limit: Float[Tensor, "m p"],
    mass: Float[Tensor, " n"],
    skipped: Bool[Tensor, "m n"] | None = None,
) -> BinSums:
    """Bin k of a query holds the scores from low + k·width on; `skipped` keys are left out."""
    product = limit @ values[0].T if len(values) == 1 else (values @ limit[..., None])[..., 0]
    squares = values.square().sum(-1), limit.square().sum(-1)
    if not has_numba() or scores.device.type != "cpu":
        sums = _sparse(scores, low, width, bins, values, product, *squares, mass, skipped)
        return BinSums(sums[..., 0], sums[..., 1], sums[..., 2], sums[..., 3:])
    count, weight, square = (values.new_zeros(len(scores), bins) for _ in range(3))
    found = BinSums(count, weight, square, values.new_zeros(len(scores), bins, values.shape[2]))
    skip = torch.zeros(1, 1, dtype=torch.bool) if skipped is None else skipped
    inputs = (scores, low, width, values, product, *squares, mass, skip)
    run_compiled(_accumulate, len(scores), *(one.contiguous() for one in inputs), *found)
    return found


def _accumulate(
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
    bins, (n, p), some = number.shape[1], values.shape[1:], skipped.size == scores.size
    step = min(1, values.shape[0] - 1)  # 0: all queries share the values
    real = values.dtype.type  # of all constants, or the loops would run in double precision
    zero, one, two, half, sixth, last = real(0), real(1), real(2), real(1 / 2), real(1 / 6), real(1 / 24)
    bin_of, share, square_of = np.empty(n, np.int32), np.empty(n, values.dtype), np.empty(n, values.dtype)
    total = np.empty((bins, p), values.dtype)  # of one query: it stays in the cache
    for i in range(start, stop):
        own, inverse, narrow = i * step, one / width[i], width[i] < 0.1001
        for j in range(n):
            place = (scores[i, j] - low[i]) * inverse
            k = max(0, min(bins - 1, int(place)))
            x = (place - real(k) - half) * width[i]
            # narrow bins: |x| ≤ 0.05, and the series is good to 3e-9
            w = one + x * (one + x * (half + x * (sixth + x * last))) if narrow else math.exp(x)
            bin_of[j], share[j] = k, mass[j] * w
            square_of[j] = max(zero, value_square[own, j] - two * product[i, j] + limit_square[i]) * w
        total[:] = 0
        for j in range(n):
            if some and skipped[i, j]:
                continue
            k, mw = bin_of[j], share[j]
            number[i, k] += mass[j]
            weight[i, k] += mw
            square[i, k] += mw * square_of[j]
            for c in range(p):
                total[k, c] += mw * values[own, j, c]
        value[i] = total


def _sparse(
    scores: Tensor,
    low: Tensor,
    width: Tensor,
    bins: int,
    values: Tensor,
    product: Tensor,
    value_square: Tensor,
    limit_square: Tensor,
    mass: Tensor,
    skipped: Tensor | None,
) -> Tensor:
    """The same without numba: a matrix with one entry in each row, times the values, a query at a time."""
    from scipy.sparse import csr_array  # slow to import

    rows, one = torch.arange(scores.shape[1] + 1).numpy(), torch.ones_like(values[0, :, :1])
    sums = []
    for i in range(scores.shape[0]):
        own = min(i, len(values) - 1)
        place = ((scores[i] - low[i]) / width[i]).long().clamp_max(bins - 1)
        w = torch.exp(scores[i] - (low[i] + (place + 0.5) * width[i]))
        weight = mass if skipped is None else mass.masked_fill(skipped[i], 0.0)
        distance = (value_square[own] - 2 * product[i] + limit_square[i]).clamp_min(0)
        table = torch.cat([one, w[:, None], (w.square() * distance)[:, None], w[:, None] * values[own]], 1)
        matrix = csr_array((weight.cpu().numpy(), place.cpu().numpy(), rows), (len(place), bins))
        sums.append(torch.from_numpy(matrix.T @ table.cpu().numpy()))
    return torch.stack(sums).to(scores.device)
