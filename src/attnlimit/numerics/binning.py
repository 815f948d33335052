"""Keys binned by score, for each query: the sums that the finite-n error needs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
    else:
        sums = values.new_zeros(scores.shape[0], bins, values.shape[2] + 3)
        skip = torch.zeros(1, 1, dtype=torch.bool) if skipped is None else skipped
        inputs = (scores, low, width, values.contiguous(), product, *squares, mass.contiguous(), skip)
        run_compiled(_accumulate, len(scores), *inputs, sums)
    return BinSums(sums[..., 0], sums[..., 1], sums[..., 2], sums[..., 3:])


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
    out: Any,
) -> None:
    bins, p, some = out.shape[1], values.shape[2], skipped.size == scores.size
    step = min(1, values.shape[0] - 1)  # 0: all queries share the values
    for i in range(start, stop):
        own = i * step
        inverse, narrow = 1.0 / width[i], width[i] < 0.1
        for j in range(scores.shape[1]):
            if some and skipped[i, j]:
                continue
            place = (scores[i, j] - low[i]) * inverse
            k = max(0, min(bins - 1, int(place)))
            x = (place - k - 0.5) * width[i]
            # narrow bins: |x| ≤ 0.05, and the series is good to 3e-9
            w = 1.0 + x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x / 24.0))) if narrow else math.exp(x)
            mw = values.dtype.type(mass[j] * w)  # or the loop below would run in double precision
            out[i, k, 0] += mass[j]
            out[i, k, 1] += mw
            out[i, k, 2] += mw * w * max(0.0, value_square[own, j] - 2.0 * product[i, j] + limit_square[i])
            for c in range(p):
                out[i, k, 3 + c] += mw * values[own, j, c]


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
