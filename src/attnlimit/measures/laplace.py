"""Tokens with exponential tails."""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.measures.base import Matrix, Nodes, Options, Points, Tail
from attnlimit.measures.product import Product, along_axes
from attnlimit.measures.spec import DIM, SIZE, Spec
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.caps import RESOLUTION

SMALLEST, LARGEST = 40.0, 100.0
"""Coordinates from e^{−40} to 100 times the scale: of 10^12 keys none is beyond, but for a probability of e^{−70}."""


class Laplace(Product):
    """Independent Laplace coordinates of scale b: Λ(a) = −Σ log(1 − b²a_i²), finite only for |a_i| < 1/b;

    ∇Λ(a)_i = 2b²a_i/(1 − b²a_i²).
    """

    spec = Spec("laplace", dim=DIM, scale=SIZE)
    growth = "grows like b·max|a_i|·log n"
    """Of the weights e^{aᵀy} the tail index is 1/(b·max|a_i|)."""

    def __init__(self, dim: int, scale: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(dim, scale, **options)
        self.domain = f"max|a_i| < 1/scale = {1 / self.scale:g}"

    def _in_domain(self, a: Points) -> Bool[Tensor, "*batch"]:
        return (self.scale * a.abs() < 1).all(-1)

    def _coordinate(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gap = (1 - t) * (1 + t)
        cgf = torch.where(t.abs() < 0.5, -torch.log1p(-t * t), -gap.log())
        return cgf, 2 * t / gap, 2 * (1 + t * t) / gap**2

    def _nodes(self, reach: float, like: Tensor, finer: float = 1.0) -> Nodes:
        """|ξ| = log(1 + e^y), where y has the logistic density: smooth, with tails that the trapezoid rule sees."""
        step = RESOLUTION / max(1.0, reach) / max(2.0, finer)
        y = torch.arange(-SMALLEST / step, LARGEST / step, dtype=like.dtype, device=like.device) * step
        size = torch.nn.functional.softplus(y)
        log_mass = -torch.nn.functional.softplus(-y) - size + math.log(step / 2)
        below = size < LARGEST / 2
        xi, log_mass = torch.cat([-size[below].flip(0), size]), torch.cat([log_mass[below].flip(0), log_mass])
        return xi, log_mass - log_mass.logsumexp(0)

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """Given one coordinate, an output is a sum of the others."""
        atoms = super().project(a, V, finer)
        others = self._matrix(V)[0].scatter(0, a[0].abs().argmax()[None], 0.0)
        nodes = torch.ones_like(atoms.scores[0], dtype=torch.bool)
        return atoms._replace(around=partial(_around, others), nodes=nodes)

    def tail(self, a: Float[Tensor, " d"]) -> Tail | None:
        """Along the largest |a_i|: index 1/(b|a_i|), constant ½ Π_{j≠i} 1/(1 − (a_j/a_i)²) (Breiman), the others tilted by a_j/(b|a_i|)."""
        i = int(a.abs().argmax())
        if float(a[i]) == 0:
            return None
        axis = torch.eye(self.dim, dtype=a.dtype, device=a.device)[i]
        ratio = (a / a[i].abs()).where(axis == 0, 0.0)
        gap = 1 - ratio.square()
        constant = float(0.5 / gap.prod()) if float(gap.min()) > 1e-12 else math.inf
        others = 2 * self.scale * ratio / gap
        offset = others - (a * others).sum() / a[i] * axis
        reach, nodes = self.scale * float(a[i].abs()), None
        if along_axes(a[None]):
            xi, log_mass = self._nodes(reach, a, finer=3.0)
            nodes = (reach * xi, log_mass)
        return Tail(1 / reach, constant, axis / a[i], offset, nodes)

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        size = -torch.log1p(-self._uniform(n, self.dim, generator=generator))
        return self.scale * size * self._signs(n, generator)


def _around(others: Float[Tensor, " d"], r: Tensor) -> Tensor:
    """E e^{irξ} − 1 of a sum of Laplace coordinates with these factors, scaled to variance 1: Π 1/(1 + r²c²) − 1."""
    share = others.square() / (2 * others.square().sum()).clamp_min(1e-300)
    log = torch.zeros_like(r)
    for one in share[share > 0]:
        log = log - torch.log1p(one * r.square())
    return torch.expm1(log)
