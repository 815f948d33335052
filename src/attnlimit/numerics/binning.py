"""Weighted sums of vectors by bin: one compiled pass where numba is installed, scipy otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from torch import Tensor


def bin_sums(
    bins: Int[Tensor, "m n"], weights: Float[Tensor, "m n"], values: Float[Tensor, "n p"], count: int
) -> Float[Tensor, "m count p"]:
    """S[i, b] = Σ_{j: bins[i, j] = b} weights[i, j] values[j]; entries with a negative bin are left out."""
    kernel = _compiled()
    if kernel is None:
        return _bin_sums_sparse(bins, weights, values, count)
    out = np.zeros((bins.shape[0], count, values.shape[1]), values.cpu().numpy().dtype)
    kernel(*(t.cpu().contiguous().numpy() for t in (bins, weights, values)), out)
    return torch.from_numpy(out).to(values.device)


def _bin_sums_sparse(bins: Tensor, weights: Tensor, values: Tensor, count: int) -> Tensor:
    """A matrix with one entry in each row, times the values: scipy's compiled loop, on one core."""
    rows, sums = np.arange(bins.shape[1] + 1), []
    table = values.cpu().numpy()
    for where, weight in zip(bins.cpu(), weights.cpu(), strict=True):
        entries = (weight.masked_fill(where < 0, 0).numpy(), where.clamp_min(0).numpy(), rows)
        sums.append(torch.from_numpy(csr_array(entries, (len(where), count)).T @ table))
    return torch.stack(sums).to(values.device)


@cache
def _compiled() -> Callable[..., Any] | None:
    try:
        import numba
    except ImportError:
        return None

    def kernel(bins, weights, values, out):  # type: ignore[no-untyped-def]
        for i in numba.prange(bins.shape[0]):
            for j in range(bins.shape[1]):
                b = bins[i, j]
                if b >= 0:
                    w = weights[i, j]
                    for k in range(values.shape[1]):
                        out[i, b, k] += w * values[j, k]

    plain = inspect.unwrap(kernel)  # run-time type checks, where a test run adds them, do not compile
    return numba.njit(parallel=True, fastmath={"contract"})(plain)
