"""Intervals for averages over examples × seeds, where every seed meets every example.

Seeds and examples are resampled independently, and a cell counts as often as its row times its column was drawn (the
"pigeonhole" bootstrap): differences between examples, between seeds, and of both together all enter, the last
somewhat too strongly, so that the intervals err on the wide side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.files.records import Recorded
from attnlimit.rates.bootstrap import checked_level

RESAMPLES = 2000
TERMS_AT_ONCE = 2**22


@dataclass(frozen=True, repr=False)
class Uncertain(Recorded):
    """A number with its interval."""

    value: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"{self.value:.4g} [{self.low:.3g}, {self.high:.3g}]"


def averaged(
    cells: Float[Tensor, "seeds examples *k"],
    level: float,
    of: Callable[[Tensor], Tensor] = lambda means: means,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What is told `of` the means over seeds and examples, and both ends of its interval; the same draws every time without a
    `generator`, so that several statistics of the same cells are resampled together."""
    resampled = crossed_means(cells, generator or torch.Generator().manual_seed(0))
    return of(cells.mean((0, 1))), *bounds(of(resampled), level)


def crossed_means(
    cells: Float[Tensor, "seeds examples *k"], generator: torch.Generator, count: int = RESAMPLES
) -> Float[Tensor, "resamples ..."]:
    """Means of resampled cells. Give what is to be compared in one tensor, so that it is resampled together."""
    seeds, examples = cells.shape[:2]
    flat = cells.double().flatten(2) if cells.ndim > 2 else cells.double()[..., None]
    by_seed = drawn_counts(seeds, count, generator) / seeds
    by_example = drawn_counts(examples, count, generator) / examples
    step = max(1, TERMS_AT_ONCE // (seeds * flat.shape[2]))
    parts = [
        torch.einsum("bs,bsk->bk", row, torch.einsum("be,sek->bsk", column, flat))
        for row, column in zip(by_seed.split(step), by_example.split(step), strict=True)
    ]
    return torch.cat(parts).view(count, *cells.shape[2:])


def bounds(resampled: Float[Tensor, "resamples ..."], level: float) -> tuple[Tensor, Tensor]:
    """Both ends of the percentile interval, along the first axis."""
    tail = (1 - checked_level(level)) / 2
    low, high = resampled.quantile(torch.tensor([tail, 1 - tail], dtype=resampled.dtype), dim=0)
    return low, high


def drawn_counts(size: int, count: int, generator: torch.Generator) -> Float[Tensor, "resamples size"]:
    """How often each of so many was drawn, in resamples of all."""
    drawn = torch.randint(size, (count, size), generator=generator)
    return torch.zeros(count, size, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones_like(drawn, dtype=torch.float64)
    )
