"""Tokens uniform on a sphere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.inputs import as_positive
from attnlimit.measures.base import Matrix, Measure, Options, Points, read
from attnlimit.measures.spec import DIM, SIZE, Spec
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.bessel import sphere_cgf, sum_transform
from attnlimit.numerics.caps import SHARP, cap_moments, caps, heights
from attnlimit.numerics.order import Largest


def polar(a: Points) -> tuple[Float[Tensor, "*batch"], Points]:
    """‖a‖ and a/‖a‖ (0 for a = 0), also where the squares of its entries underflow."""
    size = a.abs().amax(-1, keepdim=True)
    ratio = a / torch.where(size > 0, size, 1.0)
    norm = ratio.norm(dim=-1, keepdim=True)  # at least 1
    return (size * norm)[..., 0], ratio / norm.clamp_min(1.0)


class Radial(Measure):
    """A law that rotations leave alone and whose CGF is the unit sphere's in R^k, k ≥ d: Λ(a) = Λ_k(R‖a‖),

    ∇Λ(a) = R A_k(r) â,   ∇²Λ(a) = R² [A_k′(r) ââᵀ + (A_k(r)/r)(I − ââᵀ)],   r = R‖a‖, â = a/‖a‖.
    """

    narrows = True

    def __init__(self, dim: int, radius: float, more_dims: int, **options: Unpack[Options]) -> None:
        super().__init__(dim, **options)
        self.radius = as_positive(radius, "radius")
        self.order = self.dim + more_dims
        self.variance_proxy = self.radius**2 / self.order

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim={self.dim}, radius={self.radius:g})"

    def _cgf(self, a: Points) -> Float[Tensor, "*batch"]:
        return sphere_cgf(self.radius * a.norm(dim=-1), self.order).cgf

    def _tilted_mean(self, a: Points) -> Points:
        ratio = sphere_cgf(self.radius * a.norm(dim=-1), self.order).ratio_over_r
        return self.radius**2 * ratio[..., None] * a

    def _tilted_cov(self, a: Points) -> Float[Tensor, "*batch d d"]:
        norm, unit = polar(a)
        at = sphere_cgf(self.radius * norm, self.order)
        along = unit[..., :, None] * unit[..., None, :]
        across = torch.eye(self.dim, dtype=a.dtype, device=a.device) - along  # exactly zero in one dimension
        return self.radius**2 * (
            at.derivative[..., None, None] * along + at.ratio_over_r[..., None, None] * across
        )

    def _top(self, a: Points) -> Points:
        return self.radius * polar(a)[1]

    @property
    def gain(self) -> Callable[[Tensor], Tensor]:  # type: ignore[override]
        return lambda norm: self.radius**2 * sphere_cgf(self.radius * norm, self.order).ratio_over_r

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """z = R‖a‖c with c of density ∝ (1 − c²)^{(k−3)/2}, k = d on the sphere and d + 2 in the ball; given c, V y has
        mean R c V â and the rest of V y has variance R²(1 − c²)/(k − 1) in each direction orthogonal to a."""
        norm, unit = polar(a)
        c, log_mass = heights(self.order, self.radius * float(norm.max()), a, finer)
        # a = 0 has no direction: any will do
        anywhere = torch.eye(1, self.dim, dtype=a.dtype, device=a.device)
        unit = torch.where(norm[:, None] > 0, unit, anywhere)
        slope = read(V, self.radius * unit)
        across = (self.radius**2 * self._matrix(V).square().sum() - slope.square().sum(-1)).clamp_min(0)
        spread = across[:, None] * (1 - c.square()) / max(1, self.order - 1)
        scores = self.radius * norm[:, None] * c
        mean = slope[:, None, :] * c[None, :, None]
        limit, nodes = read(V, self.tilted_mean(a)), torch.full_like(c, self.order > 1, dtype=torch.bool)
        around = partial(sum_transform, torch.ones(1, dtype=a.dtype), max(1, self.order - 1))
        return Atoms(scores, log_mass.expand_as(scores), mean, spread, limit, around=around, nodes=nodes)

    def near_top(self, a: Float[Tensor, "m d"], V: Matrix | None, n_least: int, n_most: int) -> Atoms:
        """Sharp scores are set around the top, c = 1 − 2h with a grid in h."""
        if self.order == 1 or self.radius * float(a.norm(dim=-1).min()) <= SHARP:
            return super().near_top(a, V, n_least, n_most)
        a, V = a.double(), self._matrix(V).double()
        norm = a.norm(dim=-1, keepdim=True)
        h, rest, log_mass = caps(self.order, self.radius * norm, n_least, n_most)
        slope = self.radius * (a / norm) @ V.T
        across = (self.radius**2 * V.square().sum() - slope.square().sum(-1)).clamp_min(0)
        spread = across[:, None] * 4 * h * rest / (self.order - 1)
        mean = -2 * h[..., None] * slope[:, None, :]
        return Atoms(-2 * self.radius * norm * h, log_mass, mean, spread, torch.zeros_like(slope))

    def largest(self, n: Sequence[int], a: Float[Tensor, "m d"], V: Matrix | None) -> Largest:
        """With c = âᵀy/R the largest height of n, V(y − y*) is −(1 − c) R V â plus an orthogonal part of variance
        R²(1 − c²)/(k − 1) in each direction. Where all scores tie (a = 0), all n keys are averaged."""
        (norm, unit), V = polar(a.double()), self._matrix(V).double()
        h, h2 = cap_moments(self.order, np.array(n))
        along = self.radius**2 * (unit @ V.T).square().sum(-1)
        total = self.radius**2 * V.square().sum()
        across = (total - along).clamp_min(0) / max(1, self.order - 1)
        square = 4 * along[:, None] * h2 + 4 * across[:, None] * (h - h2)
        average = total / self.order / torch.tensor(n, dtype=torch.float64)
        square, top = torch.where((norm == 0)[:, None], average, square), self.radius * norm
        bias, gap = 4 * along[:, None] * h.square(), 2 * top[:, None] * h
        return Largest(square, bias, gap, top, "exact (order statistics of the height)")

    def _direction(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.nn.functional.normalize(self._normal(n, self.dim, generator=generator), dim=-1)


class Sphere(Radial):
    """Uniform on the sphere of radius R: Λ(a) = log ₀F₁(; d/2; R²‖a‖²/4), ∇Λ(a) = R A_d(R‖a‖) a/‖a‖.

    >>> Sphere(3).tilted_mean([0.0, 0.0, 2.0])  # coth 2 − 1/2
    tensor([0.0000, 0.0000, 0.5373], dtype=torch.float64)
    """

    spec = Spec("sphere", dim=DIM, radius=SIZE)

    def __init__(self, dim: int, radius: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(dim, radius, more_dims=0, **options)
        self.shell = self.radius

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self.radius * self._direction(n, generator)
