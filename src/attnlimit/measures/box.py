"""Tokens uniform in a box."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.measures.base import Options
from attnlimit.measures.product import Bounded
from attnlimit.measures.spec import DIM, SIZE, Spec


class Box(Bounded):
    """Uniform on [−c, c]^d: Λ(a) = Σ log(sinh(c a_i)/(c a_i)), ∇Λ(a)_i = c coth(c a_i) − 1/a_i.

    Each coordinate is the height of a uniform point on a sphere of R³ (Archimedes), whose CGF it shares.
    """

    spec = Spec("box", dim=DIM, half_width=SIZE)
    order = 3
    scale_name = "half_width"

    def __init__(self, dim: int, half_width: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(dim, half_width, **options)

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self.scale * (2.0 * self._uniform(n, self.dim, generator=generator) - 1.0)
