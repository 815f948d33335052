"""What a reproduction is, and what it says in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from attnlimit.drawing import Figure
from attnlimit.studies.kind import Point, Result, Row, short

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


def plain(value: float | str) -> str:
    """A number to four digits, words as they are."""
    return value if isinstance(value, str) else f"{value:.4g}"


@dataclass(frozen=True)
class Verdict:
    """One claim beside what was measured."""

    claim: str
    predicted: float | str
    measured: float | str
    interval: tuple[float, float] | None
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


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A result: the study behind it, the figure, and the verdicts. Both are functions of what the study found."""

    name: str
    """Of its study too, a file in specs/."""
    title: str
    """One line, for lists."""
    claim: str
    """What is claimed, in a sentence of our own."""
    source: str
    """Whose claim it is: a key of references.bib, or "attnlimit"."""
    figure: Callable[[Points], Figure]
    verdicts: Callable[[Points], list[Verdict]]
    table: Callable[[Points], Sequence[Row]] = table
    """The numbers behind the figure, one record a row."""
    notes: tuple[str, ...] = ()
    """Where our setting differs from the published one, in sentences."""
    more: Callable[[Points], list[str]] | None = None
    """More sentences, which depend on the run: which weights were there, and so on."""
