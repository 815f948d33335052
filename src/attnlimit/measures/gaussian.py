"""Gaussian tokens."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_float, as_points
from attnlimit.measures.base import Measure, Points


class Gaussian(Measure):
    """N(m, Σ): Λ(a) = aᵀm + ½ aᵀΣa and ∇Λ(a) = m + Σa, an affine limit [boursier2026softmax, Lemma 2.1].

    `cov` is a number (Σ = cov·I), a vector (diagonal) or a symmetric positive semi-definite matrix; singular
    is fine, and the first two forms never make a d×d matrix. `dim` is needed only when neither `mean` nor
    `cov` tells it.

    >>> Gaussian(cov=0.1, dim=50).variance_proxy
    0.1
    """

    growth = "grows like √(2 aᵀΣa log n)"

    def __init__(self, mean: Array | None = None, cov: Array = 1.0, *, dim: int | None = None) -> None:
        arrays = [v for v in (cov, mean) if isinstance(v, Tensor | np.ndarray)]
        like = as_float(arrays[0], "cov" if arrays[0] is cov else "mean") if arrays else None
        cov = as_float(cov, "cov", dtype=getattr(like, "dtype", None), device=getattr(like, "device", None))
        given = cov if mean is None else as_float(mean, "mean", dtype=cov.dtype, device=cov.device)
        shape = given.shape or cov.shape
        if dim is None and not shape:
            raise InputError("Gaussian(cov=number) has no dimension: give dim=, or a mean.")
        super().__init__(shape[-1] if dim is None else dim, dtype=cov.dtype, device=cov.device)
        self.cov = _checked_cov(cov, self.dim)
        self._mean = cov.new_zeros(self.dim) if mean is None else as_points(mean, self.dim, "mean", like=cov)
        if self._mean.ndim != 1:
            raise InputError(f"mean must have shape ({self.dim},), got {tuple(self._mean.shape)}.")
        self.variance_proxy = float(self._spectrum[0].max()) if cov.ndim == 2 else float(cov.max())
        self._shape_of_cov = {0: "scalar", 1: "diagonal", 2: "full"}[cov.ndim]

    def __repr__(self) -> str:
        return f"Gaussian(dim={self.dim}, {self._shape_of_cov} covariance)"

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.cov)
        floor = -1e-7 if self.dtype == torch.float32 else -1e-12
        if float(values.min()) < floor * self.dim * max(float(values.abs().max()), 1e-300):
            raise InputError(
                f"cov is not positive semi-definite: its least eigenvalue is {float(values.min()):.3g} "
                f"(largest {float(values.max()):.3g}). Symmetrise it or clip the negative part."
            )
        return values.clamp_min(0), vectors

    def apply_cov(self, a: Points) -> Points:
        """Σ a, without a d×d matrix in the scalar and diagonal forms."""
        return a @ self.cov if self.cov.ndim == 2 else a * self.cov

    def apply_root(self, a: Points) -> Points:
        """Σ^{1/2} a."""
        if self.cov.ndim < 2:
            return a * self.cov.sqrt()
        values, vectors = self._spectrum
        return ((a @ vectors) * values.sqrt()) @ vectors.T

    def _cgf(self, a: Points) -> Float[Tensor, "*batch"]:
        return a @ self._mean + 0.5 * (a * self.apply_cov(a)).sum(-1)

    def _tilted_mean(self, a: Points) -> Points:
        return self._mean + self.apply_cov(a)

    def _tilted_cov(self, a: Points) -> Float[Tensor, "*batch d d"]:
        full = self.cov if self.cov.ndim == 2 else torch.diag(self.cov.expand(self.dim))
        return full.expand(*a.shape[:-1], -1, -1)

    def _top(self, a: Points) -> Points:
        if bool((self.apply_cov(a) == 0).all()):  # no spread along a: every key ties
            return self._mean.expand(a.shape)
        return super()._top(a)

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self.apply_root(self._normal(n, self.dim, generator=generator)) + self._mean


def _checked_cov(cov: Tensor, dim: int) -> Tensor:
    if cov.ndim > 2 or any(size != dim for size in cov.shape):
        raise InputError(
            f"cov must be a number, a vector of length {dim} or a {dim}×{dim} matrix, got shape {tuple(cov.shape)}."
        )
    if cov.ndim < 2 and bool((cov < 0).any()):
        raise InputError(f"cov is not positive semi-definite: its least variance is {float(cov.min()):.3g}.")
    if cov.ndim == 2 and not torch.allclose(cov, cov.T, rtol=1e-5, atol=float(1e-8 * cov.abs().max())):
        raise InputError(
            f"cov is not symmetric: it differs from its transpose by up to {float((cov - cov.T).abs().max()):.3g}. "
            "Use (cov + cov.T) / 2 if that is what you mean."
        )
    return (cov + cov.T) / 2 if cov.ndim == 2 else cov
