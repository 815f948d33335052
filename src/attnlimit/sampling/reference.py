"""The truth that errors are measured against: moments of the limit's output law Γ#μ."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import AttentionMap
from attnlimit.errors import NotKnown
from attnlimit.measures import Empirical, Measure
from attnlimit.sampling.powers import Power, gaussian_moment

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
