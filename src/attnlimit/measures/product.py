"""Laws with independent, identically distributed coordinates."""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.inputs import as_positive
from attnlimit.measures.base import Matrix, Measure, Nodes, Options, Points, read
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.bessel import sphere_cgf, sum_transform
from attnlimit.numerics.caps import heights


class Product(Measure):
    """Independent coordinates y_i = scale·ξ_i with ξ symmetric: Λ(a) = Σ_i ℓ(scale·a_i), ℓ the CGF of ξ.

    A subclass gives `_coordinate(t) -> (ℓ(t), ℓ′(t), ℓ″(t))`, elementwise, and `_nodes` where the law of ξ is known.
    """

    scale_name = "scale"

    def __init__(self, dim: int, scale: float, **options: Unpack[Options]) -> None:
        super().__init__(dim, **options)
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

    def _nodes(self, reach: float, like: Tensor, finer: float) -> Nodes | None:
        """Quadrature nodes and log masses of ξ, for scores up to `reach` times it: neighbours' scores are at most
        `RESOLUTION`/finer apart. None where they are not known."""
        return None

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """Along a coordinate axis: that coordinate is ξ, the others keep their variance."""
        axis = a.abs().argmax(-1)
        value = a.gather(-1, axis[:, None])[:, 0]
        nodes = self._nodes(self.scale * float(value.abs().max()), a, finer)
        if nodes is None or not along_axes(a):
            raise self._no_projection()
        xi, log_mass = nodes
        matrix = self._matrix(V)
        columns, variance = self.scale * matrix.T[axis], self._coordinate(a.new_zeros(()))[2]
        rest = (self.scale**2 * matrix.square().sum() - columns.square().sum(-1)) * variance
        scores = self.scale * value[:, None] * xi
        mean, spread = columns[:, None, :] * xi[None, :, None], rest[:, None].expand_as(scores)
        return Atoms(scores, log_mass.expand_as(scores), mean, spread, read(V, self.tilted_mean(a)))

    def _signs(self, n: int, generator: torch.Generator) -> Tensor:
        return 2.0 * (self._uniform(n, self.dim, generator=generator) < 0.5).to(self.dtype) - 1.0


class Bounded(Product):
    """Coordinates on [−scale, scale], both ends in the support, that share the CGF of a unit sphere in R^order."""

    order: int
    narrows = True

    def __init__(self, dim: int, scale: float, **options: Unpack[Options]) -> None:
        super().__init__(dim, scale, **options)
        self.radius = self.scale * math.sqrt(self.dim)
        self.variance_proxy = self.scale**2 / self.order

    def _coordinate(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at = sphere_cgf(t.abs(), self.order)
        return at.cgf, at.ratio_over_r * t, at.derivative

    def _nodes(self, reach: float, like: Tensor, finer: float) -> Nodes:
        return heights(self.order, reach, like, finer)

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """Given one coordinate, an output is a sum of the others."""
        atoms = super().project(a, V, finer)
        others = self._matrix(V)[0].scatter(0, a[0].abs().argmax()[None], 0.0)
        nodes = torch.full_like(atoms.scores[0], self.order > 1, dtype=torch.bool)
        return atoms._replace(around=partial(sum_transform, others, self.order), nodes=nodes)

    def _top(self, a: Points) -> Points:
        return self.scale * a.sign()


def along_axes(a: Float[Tensor, "m d"]) -> bool:
    """Whether each vector has one coordinate that matters."""
    return int((a.abs() > 1e-12 * a.abs().amax(-1, keepdim=True)).sum(-1).max()) <= 1
