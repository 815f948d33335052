"""Heads of a model with n of their keys: error curves by Monte Carlo beside the closed form, and fitted slopes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt, model_validator
from scipy import stats
from torch import Tensor

from attnlimit.designs import Kept, Sampling
from attnlimit.errors import InputError
from attnlimit.models.attend.subsampled import HeadSeen, exact_squares, heads_seen, sampled_squares
from attnlimit.rates import exponents
from attnlimit.rates.error_curve import ErrorCurve
from attnlimit.studies.fields import Fields, SamplingField, Seed, Sizes
from attnlimit.studies.kind import Cell, Cells, Folder, Row, crossed, table
from attnlimit.studies.model_fields import OfModel, OnText, digits, remembered

LEAST_BATCHES = 5


class Drawn(Fields):
    """How keys are drawn: `sampling`, which may keep the keys around the query; from the keys of the text, or from all,
    special tokens too."""

    sampling: SamplingField = Sampling()
    population: Literal["text", "all"] = "text"


class Passages(OnText):
    """`queries` random tokens of each of `passages` passages of `tokens` tokens."""

    tokens: PositiveInt = 512
    passages: PositiveInt = 4
    queries: PositiveInt = 32
    query_seed: Seed = 0


@dataclass(frozen=True, eq=False)
class HeadSlope:
    """One head with one way of drawing: its errors relative to the root mean square of its outputs, and their exponents."""

    layer: int
    head: int
    horizon: float
    sampling: Sampling
    population: str
    measured: ErrorCurve
    """By Monte Carlo."""
    closed: ErrorCurve
    """In closed form."""
    exponent: float | None = None
    """None, like what follows: too few batches to tell."""
    interval: tuple[float, float] | None = None
    closed_exponent: float | None = None
    """Fitted with the same weights."""

    @property
    def published(self) -> float:
        """The published exponent at this horizon."""
        return float(exponents(self.horizon).paper)

    @property
    def half_width(self) -> list[float] | None:
        """Of the measured errors' 95 % t intervals."""
        error, rows = self.measured.standard_error, self.measured.rows
        if self.exponent is None or error is None or rows is None:
            return None
        return (float(stats.t.ppf(0.975, len(rows) - 1)) * error).tolist()

    def facts(self) -> dict[str, Cell]:
        """Its single numbers."""
        low, high = self.interval or (None, None)
        return {
            "population": self.population,
            "sampling": str(self.sampling),
            "layer": self.layer,
            "head": self.head,
            "horizon": self.horizon,
            "exponent": self.exponent,
            "exponent_low": low,
            "exponent_high": high,
            "closed_form_exponent": self.closed_exponent,
            "published_exponent": self.published,
        }

    def curve(self) -> Iterator[dict[str, Cell]]:
        """Its numbers at each n."""
        half: Sequence[float | None] = self.half_width or [None] * len(self.measured.n)
        both = (self.measured.error.tolist(), half, self.closed.error.tolist())
        for n, rms, width, closed in zip(self.measured.n, *both, strict=True):
            yield {"n": n, "rms": rms, "half_width": width, "closed_form": closed}


@dataclass(frozen=True, eq=False)
class HeadDrawn:
    """One head with one way of drawing: mean squares of batches of replicates, and the closed form."""

    layer: int
    head: int
    horizon: float
    scale: float
    population: str
    sampling: Sampling
    squares: Float[Tensor, "batches n"]
    closed: Float[Tensor, " n"]

    def slope(self, n: tuple[int, ...]) -> HeadSlope:
        squares, closed = self.squares / self.scale**2, self.closed.sqrt() / self.scale
        count, rms = len(squares), squares.mean(0).sqrt()
        error = squares.std(0) / count**0.5 / (2 * rms) if count > 1 else torch.zeros_like(rms)
        method = f"Monte Carlo, {count} batches"
        found = HeadSlope(
            self.layer,
            self.head,
            self.horizon,
            self.sampling,
            self.population,
            ErrorCurve(n, rms, error, method=method, rows=squares.sqrt()),
            ErrorCurve(n, closed, error * closed / rms, method="closed form"),
        )
        if count < LEAST_BATCHES or not bool((error > 0).all()):
            return found
        fit = found.measured.fit(resamples=1000)
        closed_exponent = found.closed.fit().exponent
        return replace(found, exponent=fit.exponent, interval=fit.interval, closed_exponent=closed_exponent)


@dataclass(frozen=True, eq=False)
class HeadsConverged(OfModel):
    """Every head with every way of drawing."""

    tokens: int
    passages: int
    queries: int
    n: tuple[int, ...]
    replicates: int
    heads: tuple[HeadDrawn, ...]
    columns = table(
        "layer:int head:int horizon population:text sampling:text batch:int n:int mean_square exact_mean_square"
    )

    def rows(self) -> Cells:
        for one in self.heads:
            facts = (one.layer, one.head, one.horizon, one.population, str(one.sampling))
            axes = [*([fact] for fact in facts), range(len(one.squares)), self.n]
            yield from crossed(axes, one.squares, one.closed.expand_as(one.squares))

    @classmethod
    def joined(cls, parts: Sequence[HeadsConverged]) -> HeadsConverged:
        heads = [
            replace(same[0], squares=torch.cat([one.squares for one in same]))
            for same in zip(*(part.heads for part in parts), strict=True)
        ]
        return replace(parts[0], replicates=sum(one.replicates for one in parts), heads=tuple(heads))

    @cached_property
    def slopes(self) -> tuple[HeadSlope, ...]:
        return tuple(one.slope(self.n) for one in self.heads)

    def shown(self) -> list[Row]:
        return [one.facts() for one in self.slopes]


def _seen(what: ModelConvergence) -> tuple[HeadSeen, ...]:
    seen = _on_text(Passages.model_validate(what.model_dump(include=set(Passages.model_fields))))
    least = min(one.scores.shape[1] for drawn in what.curves for one in seen[0].population(drawn.population))
    if what.n[-1] > least:
        raise InputError(f"n goes up to {what.n[-1]}, but a passage has only {least} keys to draw from.")
    return seen


@remembered
def _on_text(what: Passages) -> tuple[HeadSeen, ...]:
    sizes = {"tokens": what.tokens, "passages": what.passages, "queries": what.queries}
    return heads_seen(what.loaded(), what.documents(), **sizes, seed=what.query_seed)


@remembered
def _closed(what: ModelConvergence) -> list[list[Tensor]]:
    """By way of drawing and head: nothing in it is random."""

    def closed(drawn: Drawn, head: HeadSeen) -> Tensor:
        passages = head.population(drawn.population)
        squares = torch.cat([exact_squares(one, drawn.sampling, what.n) for one in passages])
        return digits(squares.mean(0), 7)

    return [[closed(drawn, head) for head in _seen(what)] for drawn in what.curves]


class ModelConvergence(Passages):
    """n keys of a context, those kept around the query among them, against all of it."""

    title = "Heads of a model with n of their keys"
    result = HeadsConverged
    together = True

    n: Sizes
    curves: Annotated[list[Drawn], Field(min_length=1)]
    batch: PositiveInt = 25
    """Replicates whose mean square is one number of the result."""

    @model_validator(mode="after")
    def _fits(self) -> ModelConvergence:
        ways = [one.sampling for one in self.curves]
        if any(one.kept != Kept(around=one.kept.around) or not one.draw.nested for one in ways):
            raise ValueError("of the keys only those around the query can be kept, and draws must be nested")
        if len(self.n) < 3 or self.n[-1] > self.tokens or self.n[0] <= max(one.kept.around for one in ways):
            raise ValueError("n needs at least 3 sizes, above the keys kept and at most tokens")
        return self

    def run(self, replicates: int, seed: int, place: Folder = None) -> HeadsConverged:
        """For each way of drawing and head: mean squares of `batch` replicates each (the last may have fewer)."""
        generator = torch.Generator().manual_seed(seed)
        found = []
        for drawn, closed in zip(self.curves, _closed(self), strict=True):
            for head, exact in zip(_seen(self), closed, strict=True):
                draws = [
                    sampled_squares(one, drawn.sampling, self.n, replicates, generator)
                    for one in head.population(drawn.population)
                ]
                batches = [part.mean(0) for part in torch.stack(draws).mean(0).split(self.batch)]
                facts = (head.layer, head.head, head.horizon, head.scale, drawn.population, drawn.sampling)
                found.append(HeadDrawn(*facts, digits(torch.stack(batches), 7), exact))
        return HeadsConverged(
            self.model.use,
            self.model.words(),
            self.tokens,
            self.passages,
            self.queries,
            tuple(self.n),
            replicates,
            tuple(found),
        )
