"""Averages and inner products of tensor powers y ⊗ … ⊗ y, which are never formed for more than a block of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_ENTRIES_AT_ONCE = 2**22
_LARGEST_TENSOR = 2**14


@dataclass(frozen=True)
class Power:
    """f(y) = y^{⊗k}, flattened, or only its diagonal (y_1^k, …, y_d^k) when `full` is false."""

    order: int
    full: bool = True

    @classmethod
    def that_fits(cls, order: int, dim: int) -> Power:
        """All entries for k ≤ 2 or while d^k ≤ 2¹⁴, else coordinate by coordinate."""
        return cls(order, full=order <= 2 or dim**order <= _LARGEST_TENSOR)

    def of(self, y: Float[Tensor, "m d"]) -> Float[Tensor, "m p"]:
        """f(y) for every row."""
        if not self.full:
            return y**self.order
        power = y
        for _ in range(self.order - 1):
            power = (power[:, :, None] * y[:, None, :]).flatten(1)
        return power

    def total(
        self, y: Float[Tensor, "m d"], weights: Float[Tensor, " m"] | None = None
    ) -> Float[Tensor, " p"]:
        """Σ_i w_i f(y_i) in float64, with w_i = 1 unless given."""
        if self.order == 1 or not self.full:
            power = y**self.order if self.order > 1 else y
            return (power.sum(0) if weights is None else weights @ power).double()
        lower = Power(self.order - 1)
        size = max(1, _ENTRIES_AT_ONCE // y.shape[1] ** lower.order)
        scaled = y if weights is None else weights[:, None] * y
        if len(y) <= size:
            return (lower.of(y).T @ scaled).flatten().double()
        blocks = zip(y.split(size), scaled.split(size), strict=True)
        return torch.stack([(lower.of(rows).T @ right).flatten().double() for rows, right in blocks]).sum(0)

    def inner(self, y: Float[Tensor, "m d"], g: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """⟨f(y_i), f(g_i)⟩ = (y_i · g_i)^k for every row."""
        return (y * g).sum(-1) ** self.order if self.full else (y * g).pow(self.order).sum(-1)

    def distance(self, y: Float[Tensor, "m d"], g: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """‖f(y_i) − f(g_i)‖² for every row; for k ≤ 2 with e = y − g, so that nothing cancels when e is small."""
        if self.order > 2 or not self.full:
            return self.inner(y, y) + self.inner(g, g) - 2 * self.inner(y, g)
        e = y - g
        ee = e.square().sum(-1)
        if self.order == 1:
            return ee
        eg = (e * g).sum(-1)
        return 2 * ee * g.square().sum(-1) + 2 * eg.square() + 4 * eg * ee + ee.square()

    def difference(self, y: Float[Tensor, "m d"], g: Float[Tensor, "m d"]) -> Float[Tensor, " p"]:
        """Average of f(y_i) − f(g_i)."""
        return (self.total(y) - self.total(g)) / len(y)

    def spread(self, y: Float[Tensor, "m d"], g: Float[Tensor, "m d"]) -> float:
        """Trace of the sample covariance of f(y_i) − f(g_i), 0 for one row."""
        m = len(y)
        total = self.distance(y, g).sum() - m * self.difference(y, g).square().sum()
        return max(0.0, float(total)) / max(1, m - 1)


def gaussian_moment(
    mean: Float[Tensor, " d"], cov: Float[Tensor, "d d"], power: Power
) -> Float[Tensor, " p"]:
    """E f(Y) for Y ~ N(mean, cov), by Stein's identity:

    M_k[i, rest] = mean_i M_{k−1}[rest] + Σ_l cov[i, rest_l] M_{k−2}[rest without l],   M_0 = 1.
    """
    before, moment = mean.new_ones(()), mean
    for order in range(2, power.order + 1):
        if power.full:
            pairs = torch.tensordot(cov, before, 0)
            extra = sum((pairs.movedim(1, place) for place in range(1, order)), mean.new_zeros(()))
            before, moment = moment, torch.tensordot(mean, moment, 0) + extra
        else:
            before, moment = moment, mean * moment + (order - 1) * cov.diagonal() * before
    return moment.flatten()
