"""The truth that errors are measured against: moments of the limit's output law Γ#μ, averages of tensor powers y ⊗ … ⊗ y, which are
never formed for more than a block of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import AttentionMap
from attnlimit.errors import NotKnown
from attnlimit.measures import Empirical, Measure

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


# Not a seed people type: the reference must not share its draws with the replicates.
_SEED = 0x7A11_5EED
_BLOCK = 2**14


class Reference(NamedTuple):
    """Moments of Γ#μ."""

    mean: Float[Tensor, " d"]
    value: Float[Tensor, " p"]
    text: str


def output_covariance(limit: AttentionMap, law: Measure, size: int) -> Reference:
    """Mean and covariance (flattened) of Γ(X), X ~ law; from `size` draws where no closed form is known."""
    outputs = limit.pushforward(law)
    if (known := outputs.population) is not None:
        mean = Power(1).total(known.values, known.probabilities)
        second = Power(2).total(known.values - mean.to(known.values), known.probabilities)
        return Reference(mean, second, _population(known))
    try:
        return Reference(outputs.mean.double(), outputs.covariance.flatten().double(), _closed(limit))
    except NotKnown:
        centre = _average(limit, law, Power(1), size).value
        return _average(limit, law, Power(2), size, centre=centre)


def output_moment(limit: AttentionMap, law: Measure, power: Power, size: int) -> Reference:
    """E f(Γ(X)), X ~ law; from `size` draws where no closed form is known."""
    outputs = limit.pushforward(law)
    if (known := outputs.population) is not None:
        value = power.total(known.values, known.probabilities)
        return Reference(torch.zeros_like(known.values[0]).double(), value, _population(known))
    try:
        return Reference(*_closed_moment(outputs, power), _closed(limit))
    except NotKnown:
        return _average(limit, law, power, size)


def _closed_moment(outputs: Measure, power: Power) -> tuple[Tensor, Tensor]:
    mean = outputs.mean.double()
    zero = torch.zeros_like(mean)
    if power.order == 1:
        return zero, mean
    if power.order > 2 and not outputs.quadratic:
        raise NotKnown(f"Moments of order {power.order} are known for Gaussian outputs alone.")
    return zero, gaussian_moment(mean, outputs.covariance.double(), power)


def _average(
    limit: AttentionMap, law: Measure, power: Power, size: int, centre: Tensor | None = None
) -> Reference:
    """Block averages of f(Γ(x) − centre): their mean, and from their spread its standard error."""
    generator = torch.Generator(law.device).manual_seed(_SEED)
    blocks = []
    for _ in range(max(2, -(-size // _BLOCK))):
        y = limit(law.sample(_BLOCK, generator=generator).tokens)
        blocks.append(power.total(y if centre is None else y - centre.to(y)) / _BLOCK)
    stacked = torch.stack(blocks)
    error = float((stacked.var(0).sum() / len(blocks)).sqrt())
    text = f"average of the limit over {len(blocks) * _BLOCK} seeded draws, standard error {error:.2g}"
    value = stacked.mean(0)
    return Reference(value.new_zeros(limit.head.V.shape[-2]) if centre is None else centre, value, text)


def _population(outputs: Empirical) -> str:
    return f"outputs of the whole population of {len(outputs)} keys"


def _closed(limit: AttentionMap) -> str:
    return f"closed-form moments of the limit's output law for {limit.measure!r}"
