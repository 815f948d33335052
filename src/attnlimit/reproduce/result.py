"""What a reproduction is, and what it says in the end: from a number with its interval to an outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import numpy as np
from scipy import stats
from torch import Tensor

from attnlimit.drawing import Figure
from attnlimit.rates import PowerFit
from attnlimit.studies.kind import Cell, Point, Result, Row, crossed, plain, short

Interval: TypeAlias = tuple[float, float]
Points: TypeAlias = Sequence[Point[Any]]
"""What the study of a result found."""
R = TypeVar("R", bound=Result)


def results(points: Points, kind: type[R]) -> list[R]:
    """Of all points, which must be of that kind."""
    found = [point.result for point in points]
    if not found or not all(isinstance(one, kind) for one in found):
        raise TypeError(f"{kind.__name__} expected of every point")
    return found


def only(points: Points, kind: type[R]) -> R:
    """Of the one point there is."""
    (found,) = results(points, kind)
    return found


def lines(facts: Row, axes: Mapping[str, Iterable[Cell]], **values: Tensor | None) -> list[Row]:
    """Of a table: one for every combination of the axes, with the facts and the values there."""
    names, axes_of = (*axes, *values), list(axes.values())
    return [{**facts, **dict(zip(names, row, strict=True))} for row in crossed(axes_of, *values.values())]


def table(points: Points) -> list[Row]:
    """The rows of all results, with what varies between points."""
    return [
        {
            **{short(path): value for path, value in point.varies.items()},
            **dict(zip(point.result.columns, row, strict=True)),
        }
        for point in points
        for row in point.result.rows()
    ]


class Outcome(Enum):
    """What the numbers say of a claim: its interval holds what is predicted, excludes it, or is too wide to tell."""

    AGREES = "agrees"
    DIFFERS = "differs"
    CANNOT_TELL = "cannot tell"

    @classmethod
    def of(cls, agrees: bool, differs: bool) -> Outcome:
        return cls.AGREES if agrees else cls.DIFFERS if differs else cls.CANNOT_TELL


@dataclass(frozen=True)
class Verdict:
    """One claim beside what was measured."""

    claim: str
    predicted: float | str
    measured: float | str
    interval: Interval | None
    """Of what was measured, at 95 %; None where there is no noise or it is no number."""
    outcome: Outcome
    note: str = ""
    """What the two numbers leave out: finite n, another statistic, other weights."""
    relation: str = ""
    """Of the measured value to the predicted one where it is not equality: "at least" or "at most"."""

    def record(self) -> VerdictRecord:
        """As it is written."""
        predicted = f"{self.relation} {plain(self.predicted)}" if self.relation else self.predicted
        low, high = self.interval or (None, None)
        return VerdictRecord(self.claim, predicted, self.measured, low, high, self.outcome.value, self.note)

    @classmethod
    def equals(
        cls,
        claim: str,
        predicted: float,
        measured: float,
        interval: Interval | None = None,
        *,
        slack: float = 0.0,
        resolution: float = math.inf,
        note: str = "",
    ) -> Verdict:
        """Agrees when predicted ± slack meets the interval and that is no wider than `resolution`.

        Slack is for what the prediction leaves out (n → ∞ against finite n), never for noise, which is in the interval.

        >>> Verdict.equals("a", 0.5, 0.49, (0.47, 0.51)).outcome.value, Verdict.equals("a", 0.5, 0.4, (0.38, 0.42)).outcome.value
        ('agrees', 'differs')
        >>> Verdict.equals("a", 0.5, 0.3, (-0.4, 1.0), resolution=0.2).outcome.value
        'cannot tell'
        """
        low, high = interval or (measured, measured)
        met = low - slack <= predicted <= high + slack
        outcome = Outcome.of(met and high - low <= resolution, not met)
        return cls(claim, predicted, measured, interval, outcome, note)

    @classmethod
    def at_least(
        cls, claim: str, predicted: float, measured: float, interval: Interval | None = None, note: str = ""
    ) -> Verdict:
        """Agrees when the whole interval is above what is predicted, differs when it is all below.

        >>> [Verdict.at_least("a", 0.3, x, (x - 0.1, x + 0.1)).outcome.value for x in (0.5, 0.35, 0.1)]
        ['agrees', 'cannot tell', 'differs']
        """
        low, high = interval or (measured, measured)
        outcome = Outcome.of(low >= predicted, high < predicted)
        return cls(claim, predicted, measured, interval, outcome, note, "at least")

    @classmethod
    def at_most(
        cls, claim: str, predicted: float, measured: float, interval: Interval | None = None, note: str = ""
    ) -> Verdict:
        """Agrees when the whole interval is below what is predicted, differs when it is all above.

        >>> Verdict.at_most("a", 1.0, 0.8, (0.7, 0.9)).outcome.value
        'agrees'
        """
        low, high = interval or (measured, measured)
        outcome = Outcome.of(high <= predicted, low > predicted)
        return cls(claim, predicted, measured, interval, outcome, note, "at most")

    @classmethod
    def falls(cls, claim: str, first: PowerFit, last: PowerFit) -> Verdict:
        """Agrees when the exponent of the last fit is below that of the first, intervals included."""
        fall = first.exponent - last.exponent
        half = math.hypot(*((fit.interval[1] - fit.interval[0]) / 2 for fit in (first, last)))
        return cls.at_least(f"{claim}: by", 0.0, fall, (fall - half, fall + half))

    @classmethod
    def holds(
        cls, claim: str, predicted: str, measured: str, yes: bool, *, enough: bool = True, note: str = ""
    ) -> Verdict:
        """A claim that is no number: true or not, or not to be told from these data.

        >>> Verdict.holds("a", "power law", "power law", True).outcome.value
        'agrees'
        """
        return cls(claim, predicted, measured, None, Outcome.of(yes and enough, enough), note)


@dataclass(frozen=True)
class VerdictRecord:
    """A verdict in verdict.json."""

    claim: str
    predicted: float | str
    measured: float | str | None
    low: float | None
    high: float | None
    outcome: str
    note: str


def mean_with_interval(values: np.ndarray) -> tuple[float, Interval]:
    """A mean of independent values, with its 95 % t interval."""
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / len(values) ** 0.5
    mean = float(values.mean())
    return mean, (mean - half, mean + half)


def without_weights(found: Sequence[Verdict]) -> list[Verdict]:
    """Claims about a trained model cannot be told from random weights; the numbers are shown all the same."""
    note = "Random weights: this tries the code, and says nothing of the trained model."
    return [replace(one, outcome=Outcome.CANNOT_TELL, note=note) for one in found]


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A result: the study behind it, the figure, and the verdicts. Both are functions of what the study found."""

    name: str
    """Of its study too, a file in specs/."""
    title: str
    """One line, for lists."""
    claim: str
    """What is claimed, in a sentence of our own."""
    source: str = "attnlimit"
    """Whose claim it is: a key of references.bib, or our own."""
    figure: Callable[[Points], Figure]
    verdicts: Callable[[Points], list[Verdict]]
    table: Callable[[Points], Sequence[Row]] = table
    """The numbers behind the figure, one record a row."""
    notes: tuple[str, ...] = ()
    """Where our setting differs from the published one, in sentences."""
    more: Callable[[Points], list[str]] | None = None
    """More sentences, which depend on the run: which weights were there, and so on."""
