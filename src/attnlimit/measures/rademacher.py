"""Tokens with independent fair signs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.measures.base import Matrix, Options, read
from attnlimit.measures.product import Bounded, along_axes
from attnlimit.measures.spec import DIM, Spec
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.bessel import sum_transform
from attnlimit.numerics.order import Largest


class Rademacher(Bounded):
    """Uniform on {−1, 1}^d: Λ(a) = Σ log cosh a_i, ∇Λ(a) = tanh a (coordinates are spheres of R¹)."""

    spec = Spec("rademacher", dim=DIM)
    order = 1
    most_coordinates = 12
    """Coordinates whose sign patterns are all listed."""

    def __init__(self, dim: int, **options: Unpack[Options]) -> None:
        super().__init__(dim, 1.0, **options)

    def __repr__(self) -> str:
        return f"Rademacher(dim={self.dim})"

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """Off the axes: all sign patterns of the coordinates that matter, the quiet ones left to the spread."""
        if along_axes(a):
            return super().project(a, V, finer)
        loud = (a != 0).any(0)
        count = int(loud.sum())
        if count > self.most_coordinates:
            raise self._no_projection()
        patterns = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * count).to(a).reshape(-1, count)
        matrix = self._matrix(V)
        mean = patterns @ matrix.T[loud]
        spread = matrix[:, ~loud].square().sum().expand(1, len(patterns))
        scores = a[:, loud] @ patterns.T
        log_mass = torch.full_like(scores, -count * math.log(2.0))
        around = partial(sum_transform, matrix[0] * ~loud, 1)
        return Atoms(scores, log_mass, mean[None], spread, read(V, self.tilted_mean(a)), around=around)

    def largest(self, n: Sequence[int], a: Float[Tensor, "m d"], V: Matrix | None) -> Largest:
        return self._largest_of_atoms(n, a, V)

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self._signs(n, generator)
