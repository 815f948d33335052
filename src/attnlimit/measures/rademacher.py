"""Tokens with independent fair signs."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.measures.base import Kind
from attnlimit.measures.product import Bounded


class Rademacher(Bounded):
    """Uniform on {−1, 1}^d: Λ(a) = Σ log cosh a_i, ∇Λ(a) = tanh a (coordinates are spheres of R¹)."""

    order = 1

    def __init__(self, dim: int, **kind: Unpack[Kind]) -> None:
        super().__init__(dim, 1.0, **kind)

    def __repr__(self) -> str:
        return f"Rademacher(dim={self.dim})"

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self._signs(n, generator)
