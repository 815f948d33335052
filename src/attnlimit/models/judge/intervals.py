"""Intervals for averages over examples × seeds, where every seed meets every example.

Seeds and examples are resampled independently, and a cell counts as often as its row times its column was drawn (the
"pigeonhole" bootstrap): differences between examples, between seeds, and of both together all enter, the last
somewhat too strongly, so that the intervals err on the wide side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.models.judge.tasks import TaskResult
from attnlimit.rates.bootstrap import checked_level

RESAMPLES = 2000
TERMS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Uncertain:
    """A number with its interval."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}

    def __repr__(self) -> str:
        return f"{self.value:.4g} [{self.low:.3g}, {self.high:.3g}]"


def crossed_means(
    cells: Float[Tensor, "seeds examples *k"], generator: torch.Generator, count: int = RESAMPLES
) -> Float[Tensor, "resamples ..."]:
    """Means of resampled cells. Give what is to be compared in one tensor, so that it is resampled together."""
    seeds, examples = cells.shape[:2]
    flat = cells.double().flatten(2) if cells.ndim > 2 else cells.double()[..., None]
    by_seed = _counts(seeds, count, generator) / seeds
    by_example = _counts(examples, count, generator) / examples
    step = max(1, TERMS_AT_ONCE // (seeds * flat.shape[2]))
    parts = [
        torch.einsum("bs,bsk->bk", row, torch.einsum("be,sek->bsk", column, flat))
        for row, column in zip(by_seed.split(step), by_example.split(step), strict=True)
    ]
    return torch.cat(parts).view(count, *cells.shape[2:])


def uncertain(value: Tensor | float, resampled: Float[Tensor, " resamples"], level: float) -> Uncertain:
    """The value with the percentile interval of its resamples."""
    low, high = bounds(resampled, level)
    return Uncertain(float(value), float(low), float(high))


def bounds(resampled: Float[Tensor, "resamples ..."], level: float) -> tuple[Tensor, Tensor]:
    """Both ends of the percentile interval, along the first axis."""
    tail = (1 - checked_level(level)) / 2
    low, high = resampled.quantile(torch.tensor([tail, 1 - tail], dtype=resampled.dtype), dim=0)
    return low, high


def compared(full: TaskResult, sampled: Sequence[TaskResult], level: float) -> tuple[Uncertain, Uncertain]:
    """The metric over seeds, and what is lost of it, by a bootstrap in which every example stays paired."""
    cells = torch.stack([one.per_example for one in sampled])
    both = torch.stack([cells, full.per_example.expand_as(cells)], -1)
    means, resampled = both.mean((0, 1)), crossed_means(both, torch.Generator().manual_seed(0))

    def lost(pair: Tensor) -> Tensor:
        if full.logarithmic:
            return (pair[..., 0] - pair[..., 1]).exp() - 1
        return pair[..., 1] - pair[..., 0] if full.higher_is_better else pair[..., 0] - pair[..., 1]

    value = uncertain(full.metric(means[0]), full.metric(resampled[:, 0]), level)
    return value, uncertain(lost(means), lost(resampled), level)


def _counts(size: int, count: int, generator: torch.Generator) -> Float[Tensor, "resamples size"]:
    drawn = torch.randint(size, (count, size), generator=generator)
    return torch.zeros(count, size, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones_like(drawn, dtype=torch.float64)
    )
