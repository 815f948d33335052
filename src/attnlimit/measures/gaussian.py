"""Gaussian tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError, LimitDoesNotExist
from attnlimit.inputs import Array, as_float, as_points
from attnlimit.measures.base import Matrix, Measure, Points, read
from attnlimit.measures.spec import Field, Form, Spec
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.caps import RESOLUTION
from attnlimit.numerics.order import Largest, normal_maximum


class Gaussian(Measure):
    """N(m, Σ): Λ(a) = aᵀm + ½ aᵀΣa and ∇Λ(a) = m + Σa, an affine limit [boursier2026softmax, Lemma 2.1].

    `cov` is a number (Σ = cov·I), a vector (diagonal) or a symmetric positive semi-definite matrix; singular
    is fine, and the first two forms never make a d×d matrix. `dim` is needed only when neither `mean` nor
    `cov` tells it.

    >>> Gaussian(cov=0.1, dim=50).variance_proxy
    0.1
    """

    spec = Spec(
        "gaussian", dim=Field(Form.COUNT, None), cov=Field(Form.ARRAY, 1.0), mean=Field(Form.VECTOR, None)
    )
    quadratic = True
    narrows = True
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
        self.cov = checked_cov(cov, self.dim)
        self._mean = cov.new_zeros(self.dim) if mean is None else as_points(mean, self.dim, "mean", like=cov)
        if self._mean.ndim != 1:
            raise InputError(f"mean must have shape ({self.dim},), got {tuple(self._mean.shape)}.")
        self.variance_proxy = float(self._spectrum[0].max()) if cov.ndim == 2 else float(cov.max())
        self._shape_of_cov = {0: "scalar", 1: "diagonal", 2: "full"}[cov.ndim]

    @classmethod
    def from_spec(cls, like: Tensor, **fields: Any) -> Gaussian:
        cov = as_float(fields["cov"], "cov", dtype=like.dtype, device=like.device)
        return cls(fields["mean"], cov, dim=fields["dim"])

    @classmethod
    def sized(cls, dim: int, size: float) -> Gaussian:
        """Of standard deviation `size`."""
        return cls(cov=size**2, dim=dim)

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

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """z = aᵀm + s g with g ~ N(0, 1), s² = aᵀΣa; given g, V y has mean V(m + Σa g/s) and the rest of the trace."""
        along = self.apply_cov(a)
        s = (a * along).sum(-1).clamp_min(0).sqrt()
        step = RESOLUTION / finer / max(1.0, float(s.max()))
        g = torch.arange(*_reach(float(s.min())), step, dtype=a.dtype, device=a.device)
        log_mass = -0.5 * g.square() - 0.5 * math.log(2 * math.pi) + math.log(step)
        slope = read(V, along / s.clamp_min(1e-300)[:, None]) * (s > 0)[:, None]
        scores = (a @ self._mean)[:, None] + s[:, None] * g
        spread = (self._trace(V) - slope.square().sum(-1)).clamp_min(0)
        return Atoms(
            scores,
            log_mass.expand_as(scores),
            read(V, self._mean) + slope[:, None, :] * g[None, :, None],
            spread[:, None].expand_as(scores),
            read(V, self.tilted_mean(a)),
            smooth=max(1.0, 0.12 * float(s.min())),  # n ≤ 10^12 keys: φⁿ varies on the scale s/√(2 log n)
            around=_around,
            nodes=torch.ones_like(g, dtype=torch.bool),
        )

    def coverage(self, a: Float[Tensor, "m d"], log_n: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """Φ((log n − s²/2)/s), as log dμ_a/dμ is N(s²/2, s²) under μ_a."""
        s = (a * self.apply_cov(a)).sum(-1).clamp_min(1e-300).sqrt()
        return torch.special.ndtr(log_n / s - s / 2)

    def largest(self, n: Sequence[int], a: Float[Tensor, "m d"], V: Matrix | None) -> Largest:
        """Only queries whose scores all tie have a limit: they average all n keys."""
        if bool((self.apply_cov(a) != 0).any()):
            examples = normal_maximum(np.array([10, 10**3, 10**6, 10**9]))[0].tolist()
            raise LimitDoesNotExist(
                f"No hardmax limit: {self!r} is unbounded, and the largest of n scores {self.growth}. In standard deviations "
                f"its mean is {', '.join(f'{value:.4g}' for value in examples)} at n = 10, 10^3, 10^6, 10^9, see "
                "gaussian_maximum(n). Use finite tokens, law.sample(n, generator=…), or a law with bounded support."
            )
        square = (self._trace(V).double() / torch.tensor(n, dtype=torch.float64)).expand(len(a), -1)
        zero, top = torch.zeros_like(square), (a @ self._mean).double()
        return Largest(square, zero, zero, top, "exact (all scores are equal: plain averages)")

    def _trace(self, V: Matrix | None) -> Float[Tensor, ""]:
        """tr VΣVᵀ."""
        if V is None:
            return self.cov.diagonal().sum() if self.cov.ndim == 2 else self.cov.expand(self.dim).sum()
        return self.apply_root(V).square().sum()

    def spread(self, rows: Float[Tensor, "*heads r d"] | None) -> Float[Tensor, "*heads r r"]:
        if rows is None or self.cov.ndim == 2:
            return super().spread(rows)
        return (rows * self.cov.double()) @ rows.mT

    def proxy_root(self, rows: Float[Tensor, "r d"]) -> Float[Tensor, "r d"]:
        """M Σ^{1/2}."""
        return self.apply_root(rows)

    @property
    def tails(self) -> tuple[Measure, ...]:
        return (self,)

    def image(self, W: Matrix, b: Float[Tensor, " e"]) -> Gaussian:
        """N(W m + b, W Σ Wᵀ)."""
        cov = W @ self.covariance @ W.T
        return Gaussian(W @ self._mean + b, (cov + cov.T) / 2)

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self.apply_root(self._normal(n, self.dim, generator=generator)) + self._mean


def _reach(s: float) -> tuple[float, float]:
    """Standard deviations that matter: weights e^{2sg} reach to 2s + 7 while n ≤ 10^12 keys get there at all, which
    they do up to 10 (mass 1e-23 beyond); when scores spread widely, keys below −6.5 (mass 4e-11) weigh nothing."""
    return (-9.0, 12.0) if s < 4 else (-6.5, 10.0)


def _around(r: Tensor) -> Tensor:
    """Normal."""
    return torch.expm1(-r.square() / 2)


def checked_cov(cov: Tensor, dim: int, name: str = "cov") -> Tensor:
    """A number, a vector of variances, or a matrix, made symmetric to the last bit."""
    if cov.ndim > 2 or any(size != dim for size in cov.shape):
        raise InputError(
            f"{name} must be a number, a vector of length {dim} or a {dim}×{dim} matrix, got shape {tuple(cov.shape)}."
        )
    if cov.ndim < 2 and bool((cov < 0).any()):
        raise InputError(
            f"{name} is not positive semi-definite: its least variance is {float(cov.min()):.3g}."
        )
    if cov.ndim == 2 and not torch.allclose(cov, cov.T, rtol=1e-5, atol=float(1e-8 * cov.abs().max())):
        raise InputError(
            f"{name} is not symmetric: it differs from its transpose by up to {float((cov - cov.T).abs().max()):.3g}. "
            f"Use ({name} + {name}.T) / 2 if that is what you mean."
        )
    return (cov + cov.T) / 2 if cov.ndim == 2 else cov
