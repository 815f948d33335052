"""Keys binned by score, for each query: the sums that the finite-n error needs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from scipy.sparse import csr_array
from torch import Tensor

from attnlimit.numerics.compiled import has_numba, run_compiled


class BinSums(NamedTuple):
    """For each query and bin of centre c, over the keys with score z in it and w = e^{z − c}."""

    mass: Float[Tensor, "m b"]
    """Σ mass."""
    weight: Float[Tensor, "m b"]
    """Σ mass·w."""
    square: Float[Tensor, "m b"]
    """Σ mass·w² distance²."""
    value: Float[Tensor, "m b p"]
    """Σ mass·w value."""


def bin_by_score(
    scores: Float[Tensor, "m n"],
    low: Float[Tensor, " m"],
    width: Float[Tensor, " m"],
    bins: int,
    values: Float[Tensor, "n p"],
    distance: Float[Tensor, "m n"],
    mass: Float[Tensor, " n"],
    skipped: Bool[Tensor, "m n"] | None = None,
) -> BinSums:
    """Bin k of a query holds the scores from low + k·width on; `skipped` keys are left out."""
    if not has_numba() or scores.device.type != "cpu":
        sums = _sparse(scores, low, width, bins, values, distance, mass, skipped)
    else:
        sums = values.new_zeros(scores.shape[0], bins, values.shape[1] + 3)
        skip = torch.zeros(1, 1, dtype=torch.bool) if skipped is None else skipped
        run_compiled(
            _accumulate, len(scores), scores, low, width, values.contiguous(), distance, mass, skip, sums
        )
    return BinSums(sums[..., 0], sums[..., 1], sums[..., 2], sums[..., 3:])


def _accumulate(
    start: int,
    stop: int,
    scores: Any,
    low: Any,
    width: Any,
    values: Any,
    distance: Any,
    mass: Any,
    skipped: Any,
    out: Any,
) -> None:
    bins, p, some = out.shape[1], values.shape[1], skipped.size == scores.size
    for i in range(start, stop):
        for j in range(scores.shape[1]):
            if some and skipped[i, j]:
                continue
            k = max(0, min(bins - 1, int((scores[i, j] - low[i]) / width[i])))
            w = math.exp(scores[i, j] - (low[i] + (k + 0.5) * width[i]))
            mw = mass[j] * w
            out[i, k, 0] += mass[j]
            out[i, k, 1] += mw
            out[i, k, 2] += mw * w * distance[i, j]
            for c in range(p):
                out[i, k, 3 + c] += mw * values[j, c]


def _sparse(
    scores: Tensor,
    low: Tensor,
    width: Tensor,
    bins: int,
    values: Tensor,
    distance: Tensor,
    mass: Tensor,
    skipped: Tensor | None,
) -> Tensor:
    """The same without numba: a matrix with one entry in each row, times the values, a query at a time."""
    rows, one = torch.arange(scores.shape[1] + 1).numpy(), torch.ones_like(values[:, :1])
    sums = []
    for i in range(scores.shape[0]):
        place = ((scores[i] - low[i]) / width[i]).long().clamp_max(bins - 1)
        w = torch.exp(scores[i] - (low[i] + (place + 0.5) * width[i]))
        weight = mass if skipped is None else mass.masked_fill(skipped[i], 0.0)
        table = torch.cat([one, w[:, None], (w.square() * distance[i])[:, None], w[:, None] * values], 1)
        matrix = csr_array((weight.cpu().numpy(), place.cpu().numpy(), rows), (len(place), bins))
        sums.append(torch.from_numpy(matrix.T @ table.cpu().numpy()))
    return torch.stack(sums).to(scores.device)
