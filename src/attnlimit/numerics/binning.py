"""Weighted sums of vectors by bin: one compiled pass where numba is installed, torch otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def bin_sums(
    bins: Int[Tensor, "m n"], weights: Float[Tensor, "m n"], values: Float[Tensor, "n p"], count: int
) -> Float[Tensor, "m count p"]:
    """S[i, b] = Σ_{j: bins[i, j] = b} weights[i, j] values[j]; entries with a negative bin are left out."""
    kernel = _compiled()
    if kernel is None or bins.device.type != "cpu":
        return _bin_sums_torch(bins, weights, values, count)
    out = np.zeros((bins.shape[0], count, values.shape[1]), values.numpy().dtype)
    kernel(
        bins.to(torch.int32).contiguous().numpy(),
        weights.contiguous().numpy(),
        values.contiguous().numpy(),
        out,
    )
    return torch.from_numpy(out)


def _bin_sums_torch(bins: Tensor, weights: Tensor, values: Tensor, count: int) -> Tensor:
    out = values.new_zeros(bins.shape[0], count + 1, values.shape[1])
    place = torch.where(bins < 0, count, bins)
    for row, (where, weight) in enumerate(zip(place, weights, strict=True)):
        out[row].index_add_(0, where, weight[:, None] * values)
    return out[:, :count]


@cache
def _compiled() -> Callable[..., Any] | None:
    try:
        import numba
    except ImportError:
        return None

    @numba.njit(parallel=True, fastmath={"contract"}, cache=False)
    def kernel(bins, weights, values, out):  # type: ignore[no-untyped-def]
        for i in numba.prange(bins.shape[0]):
            for j in range(bins.shape[1]):
                b = bins[i, j]
                if b >= 0:
                    w = weights[i, j]
                    for k in range(values.shape[1]):
                        out[i, b, k] += w * values[j, k]

    return kernel
