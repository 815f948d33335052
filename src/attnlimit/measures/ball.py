"""Tokens uniform in a ball."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.measures.base import Options
from attnlimit.measures.spec import DIM, SIZE, Spec
from attnlimit.measures.sphere import Radial


class Ball(Radial):
    """Uniform in the ball of radius R: the CGF is the sphere's of R^{d+2}, ∇Λ(a) = R A_{d+2}(R‖a‖) a/‖a‖."""

    spec = Spec("ball", dim=DIM, radius=SIZE)

    def __init__(self, dim: int, radius: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(dim, radius, more_dims=2, **options)

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        height = self._uniform(n, 1, generator=generator) ** (1 / self.dim)
        return self.radius * height * self._direction(n, generator)
