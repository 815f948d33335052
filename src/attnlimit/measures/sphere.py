"""Tokens uniform on a sphere."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.inputs import as_positive
from attnlimit.measures.base import Kind, Measure, Points
from attnlimit.numerics.bessel import sphere_cgf


class Radial(Measure):
    """A law that rotations leave alone and whose CGF is the unit sphere's in R^k, k ≥ d: Λ(a) = Λ_k(R‖a‖),

    ∇Λ(a) = R A_k(r) â,   ∇²Λ(a) = R² [A_k′(r) ââᵀ + (A_k(r)/r)(I − ââᵀ)],   r = R‖a‖, â = a/‖a‖.
    """

    def __init__(
        self,
        dim: int,
        radius: float,
        more_dims: int,
        **kind: Unpack[Kind],
    ) -> None:
        super().__init__(dim, **kind)
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
        norm = a.norm(dim=-1)
        at = sphere_cgf(self.radius * norm, self.order)
        unit = a / norm.clamp_min(torch.finfo(a.dtype).tiny)[..., None]
        along = unit[..., :, None] * unit[..., None, :]
        across = torch.eye(self.dim, dtype=a.dtype, device=a.device) - along  # exactly zero in one dimension
        return self.radius**2 * (
            at.derivative[..., None, None] * along + at.ratio_over_r[..., None, None] * across
        )

    def _top(self, a: Points) -> Points:
        norm = a.norm(dim=-1, keepdim=True)
        return torch.where(norm > 0, self.radius * a / norm.clamp_min(torch.finfo(a.dtype).tiny), 0.0)

    def _direction(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.nn.functional.normalize(self._normal(n, self.dim, generator=generator), dim=-1)


class Sphere(Radial):
    """Uniform on the sphere of radius R: Λ(a) = log ₀F₁(; d/2; R²‖a‖²/4), ∇Λ(a) = R A_d(R‖a‖) a/‖a‖.

    >>> Sphere(3).tilted_mean([0.0, 0.0, 2.0])  # coth 2 − 1/2
    tensor([0.0000, 0.0000, 0.5373], dtype=torch.float64)
    """

    def __init__(
        self,
        dim: int,
        radius: float = 1.0,
        **kind: Unpack[Kind],
    ) -> None:
        super().__init__(dim, radius, more_dims=0, **kind)

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self.radius * self._direction(n, generator)
