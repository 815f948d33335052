"""Laws with independent, identically distributed coordinates."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.inputs import as_positive
from attnlimit.measures.base import Kind, Measure, Points
from attnlimit.numerics.bessel import sphere_cgf


class Product(Measure):
    """Independent coordinates y_i = scale·ξ_i with ξ symmetric: Λ(a) = Σ_i ℓ(scale·a_i), ℓ the CGF of ξ.

    A subclass gives `_coordinate(t) -> (ℓ(t), ℓ′(t), ℓ″(t))`, elementwise.
    """

    scale_name = "scale"

    def __init__(self, dim: int, scale: float, **kind: Unpack[Kind]) -> None:
        super().__init__(dim, **kind)
        self.scale = as_positive(scale, self.scale_name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim={self.dim}, {self.scale_name}={self.scale:g})"

    def _coordinate(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError

    def _cgf(self, a: Points) -> Float[Tensor, "*batch"]:
        return self._coordinate(self.scale * a)[0].sum(-1)

    def _tilted_mean(self, a: Points) -> Points:
        return self.scale * self._coordinate(self.scale * a)[1]

    def _tilted_cov(self, a: Points) -> Float[Tensor, "*batch d d"]:
        return torch.diag_embed(self.scale**2 * self._coordinate(self.scale * a)[2])

    def _signs(self, n: int, generator: torch.Generator) -> Tensor:
        return 2.0 * (self._uniform(n, self.dim, generator=generator) < 0.5).to(self.dtype) - 1.0


class Bounded(Product):
    """Coordinates on [−scale, scale], both ends in the support, that share the CGF of a unit sphere in R^order."""

    order: int

    def __init__(self, dim: int, scale: float, **kind: Unpack[Kind]) -> None:
        super().__init__(dim, scale, **kind)
        self.radius = self.scale * math.sqrt(self.dim)
        self.variance_proxy = self.scale**2 / self.order

    def _coordinate(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at = sphere_cgf(t.abs(), self.order)
        return at.cgf, at.ratio_over_r * t, at.derivative

    def _top(self, a: Points) -> Points:
        return self.scale * a.sign()
