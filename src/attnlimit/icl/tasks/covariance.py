"""Covariance matrices of tasks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_count, as_float


def ar1(dim: int, rho: float | int) -> Float[Tensor, "d d"]:
    """Σ_ij = ρ^|i−j|.

    >>> ar1(3, 0.5)
    tensor([[1.0000, 0.5000, 0.2500],
            [0.5000, 1.0000, 0.5000],
            [0.2500, 0.5000, 1.0000]], dtype=torch.float64)
    """
    dim = as_count(dim, "dim")
    if not isinstance(rho, int | float) or not -1 < rho < 1:
        raise InputError(
            f"rho must lie strictly between −1 and 1, got {rho!r}: else ρ^|i−j| is no positive definite covariance."
        )
    index = torch.arange(dim, dtype=torch.float64)
    return torch.tensor(float(rho), dtype=torch.float64) ** (index[:, None] - index).abs()


def as_cov(value: Array, dim: int | None, name: str) -> Float[Tensor, "d d"]:
    """A symmetric positive definite matrix in float64, from a number (times I), a vector (diagonal) or a matrix."""
    cov = as_float(value, name).detach().double().cpu()
    if cov.ndim == 0:
        if dim is None:
            raise InputError(f"{name} is a number, which tells no dimension: give dim=.")
        cov = cov.expand(dim)
    size = cov.shape[-1] if dim is None else dim
    if cov.ndim > 2 or any(length != size for length in cov.shape):
        raise InputError(
            f"{name} must be a number, a vector of length {size} or a {size}×{size} matrix, got shape {tuple(cov.shape)}."
        )
    cov = torch.diag(cov) if cov.ndim == 1 else cov
    if not torch.allclose(cov, cov.T, rtol=1e-5, atol=float(1e-8 * cov.abs().max())):
        raise InputError(
            f"{name} is not symmetric: it differs from its transpose by up to {float((cov - cov.T).abs().max()):.3g}. "
            f"Use ({name} + {name}.T) / 2 if that is what you mean."
        )
    cov = (cov + cov.T) / 2
    values = torch.linalg.eigvalsh(cov)
    if float(values[0]) <= 1e-12 * float(values[-1].abs()):
        raise InputError(
            f"{name} is not positive definite: its least eigenvalue is {float(values[0]):.3g} "
            f"(largest {float(values[-1]):.3g}). The solution needs its inverse: drop the directions without variance."
        )
    return cov
