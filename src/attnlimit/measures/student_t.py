"""Tokens with heavy tails, for which attention has no limit."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.errors import LimitDoesNotExist
from attnlimit.inputs import as_positive
from attnlimit.measures.base import Measure, Options, Points, Tail


class StudentT(Measure):
    """Multivariate Student t: y = g √(df/χ²_df). Λ(a) = ∞ for every a ≠ 0, so attention has no limit."""

    domain = "a = 0 only"

    def __init__(self, dim: int, df: float | int, **options: Unpack[Options]) -> None:
        super().__init__(dim, **options)
        self.df = as_positive(df, "df")
        self.growth = f"grows like n^(1/{self.df:g})"

    def __repr__(self) -> str:
        return f"StudentT(dim={self.dim}, df={self.df:g})"

    def _in_domain(self, a: Points) -> Bool[Tensor, "*batch"]:
        return (a == 0).all(-1)

    def tail(self, a: Float[Tensor, " d"]) -> Tail | None:
        """Scores have power tails, so that weights have none of any power: index 0."""
        nothing = torch.zeros_like(a)
        return Tail(0.0, math.nan, nothing, nothing) if bool(a.any()) else None

    def _cgf(self, a: Points) -> Float[Tensor, "*batch"]:
        return a.new_zeros(a.shape[:-1])

    def _tilted_mean(self, a: Points) -> Points:
        self._needs_moment(1, "mean")
        return torch.zeros_like(a)

    def _tilted_cov(self, a: Points) -> Float[Tensor, "*batch d d"]:
        self._needs_moment(2, "covariance")
        scale = self.df / (self.df - 2) * torch.eye(self.dim, dtype=a.dtype, device=a.device)
        return scale.expand(*a.shape[:-1], -1, -1)

    def _needs_moment(self, order: int, name: str) -> None:
        if self.df <= order:
            raise LimitDoesNotExist(
                f"{self!r} has no {name}: it needs df > {order}. Averages of n tokens do not settle."
            )

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        shape = torch.full((n, 1), self.df / 2, dtype=self.dtype, device=self.device)
        chi2 = 2 * torch._standard_gamma(shape, generator=generator)
        return self._normal(n, self.dim, generator=generator) * (self.df / chi2).sqrt()
