"""Covariances of what a head projects, added up passage by passage, and the horizon that they make."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnlimit.rates.horizon import top_horizon


class Moments:
    """Σx and Σxxᵀ over queries and over keys, of one head or of several along leading axes."""

    def __init__(self, scale: float) -> None:
        self.scale, self.count = scale, 0
        self.sums: list[Tensor] = []

    def add(self, query: Float[Tensor, "*h tokens d"], key: Float[Tensor, "*h tokens d"]) -> None:
        both = [x.double().cpu() for x in (query, key)]
        parts = [part for x in both for part in (x.sum(-2), x.mT @ x)]
        self.sums = [a + b for a, b in zip(self.sums, parts, strict=True)] if self.sums else parts
        self.count += query.shape[-2]

    def horizon(self) -> Float[Tensor, "*h"]:
        """H = scale·√λ_max(Cov q · Cov k)."""
        q, qq, k, kk = (one / self.count for one in self.sums)
        cov_q, cov_k = (xx - x[..., :, None] * x[..., None, :] for x, xx in ((q, qq), (k, kk)))
        return top_horizon(cov_q, cov_k, self.scale)
