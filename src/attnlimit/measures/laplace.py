"""Tokens with exponential tails."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.doors import door
from attnlimit.measures.base import Kind, Points
from attnlimit.measures.product import Product
from attnlimit.measures.spec import DIM, SIZE, Spec


@door
class Laplace(Product):
    """Independent Laplace coordinates of scale b: Λ(a) = −Σ log(1 − b²a_i²), finite only for |a_i| < 1/b;

    ∇Λ(a)_i = 2b²a_i/(1 − b²a_i²).
    """

    spec = Spec("laplace", dim=DIM, scale=SIZE)
    growth = "grows like b·max|a_i|·log n"

    def __init__(self, dim: int, scale: float = 1.0, **kind: Unpack[Kind]) -> None:
        super().__init__(dim, scale, **kind)
        self.domain = f"max|a_i| < 1/scale = {1 / self.scale:g}"

    def _in_domain(self, a: Points) -> Bool[Tensor, "*batch"]:
        return (self.scale * a.abs() < 1).all(-1)

    def _coordinate(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gap = (1 - t) * (1 + t)
        cgf = torch.where(t.abs() < 0.5, -torch.log1p(-t * t), -gap.log())
        return cgf, 2 * t / gap, 2 * (1 + t * t) / gap**2

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        size = -torch.log1p(-self._uniform(n, self.dim, generator=generator))
        return self.scale * size * self._signs(n, generator)
