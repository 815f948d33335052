"""What kinds about a head on a law share: their fields, what theory knows of them, and what is said of their errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

from pydantic import PlainSerializer, PlainValidator

from attnlimit.attention import Head
from attnlimit.errors import AttnlimitError
from attnlimit.measures import Measure
from attnlimit.rates import ErrorCurve, PowerFit, Rates, horizon, rates
from attnlimit.studies.fields import Sizes
from attnlimit.studies.heads import HeadSpec
from attnlimit.studies.kind import Cell, Kind, Point, Result, Row
from attnlimit.studies.laws import Dtype, Law, like


def _rates(data: Any) -> Rates:
    return data if isinstance(data, Rates) else Rates(**{one.name: data[one.name] for one in fields(Rates)})


@dataclass(frozen=True)
class Limit:
    """What is known of a head on a law as n → ∞."""

    horizon: float
    rates: Annotated[Rates, PlainValidator(_rates), PlainSerializer(Rates.to_dict)]


class Setting(Kind):
    """A head on a law, at sizes n."""

    law: Law
    head: HeadSpec
    n: Sizes
    dtype: Dtype = "float64"
    device: Literal["cpu", "cuda"] = "cpu"

    def build(self) -> tuple[Head, Measure]:
        kind = like(self.dtype, self.device)
        law = self.law.build(kind)
        return self.head.build(law, kind), law

    def check(self) -> object:
        return self.build()

    def limit(self) -> Limit | None:
        """The horizon and the exponents; None where there is no limit or no known rate."""
        try:
            head, law = self.build()
            return Limit(float(horizon(head, law)), rates(head, law))
        except AttnlimitError:
            return None


def told(limit: Limit | None) -> dict[str, Any]:
    """What a summary says of the limit."""
    return {
        "horizon": None if limit is None else limit.horizon,
        "rates": None if limit is None else limit.rates.to_dict(),
    }


C = TypeVar("C", bound="CurveResult")


class CurveResult(Result):
    """A result that is an error against n, of a head on a law."""

    limit: Limit | None

    @property
    @abstractmethod
    def curve(self) -> ErrorCurve:
        """The rms error."""

    @property
    def error_of(self) -> str:
        """What the error is of, in a word."""
        return "error"

    @property
    def fit(self) -> PowerFit | None:
        """The power of n through the curve, where it is noisy and one can be fitted."""
        return None

    @property
    def sharp(self) -> float | None:
        """The exponent of this very error as n → ∞, where it is known."""
        return None

    @property
    def replicates(self) -> int | None:
        """None where there is no noise."""
        return None

    @property
    def horizon(self) -> float | None:
        return None if self.limit is None else self.limit.horizon

    def shown(self) -> list[Row]:
        row: dict[str, Cell] = {
            "horizon": self.horizon,
            "largest n": self.curve.n[-1],
            "rms there": float(self.curve.error[-1]),
        }
        if self.fit is not None:
            level = f"{100 * self.fit.level:g} %"
            row["exponent"] = self.fit.exponent
            row[f"{level} from"], row[f"{level} to"] = self.fit.interval
        if self.limit is not None:
            row["published"] = float(self.limit.rates.paper)
            row |= {} if self.sharp is None else {"n → ∞": self.sharp}
        return [row]

    @classmethod
    def words(cls: type[C], points: Sequence[Point[C]]) -> list[str]:
        """From which exponent to which, and how many are no less than the published ones."""
        fitted = [(fit.exponent, one, fit) for one in points if (fit := one.result.fit) is not None]
        if not fitted:
            return []
        (_, low, _), (_, high, _) = min(fitted, key=lambda one: one[0]), max(fitted, key=lambda one: one[0])
        text = "The error falls as a power of the number of tokens n. "
        if low is high:
            text += f"The exponent is {_said(low.result.fit)}."
        else:
            text += f"Its exponent runs from {_said(low.result.fit)} at {low.label} to {_said(high.result.fit)} at {high.label}."
        known = [(fit, one.result.limit) for _, one, fit in fitted if one.result.limit is not None]
        if known:
            at_least = sum(fit.interval[1] >= limit.rates.paper for fit, limit in known)
            text += (
                f" At {at_least} of {len(known)} points it is no less than the published exponent, within its interval; "
                "that one is a limit, which the slope at finite n need not have reached."
            )
        return [text]


def _said(fit: PowerFit | None) -> str:
    if fit is None:
        return "not known"
    low, high = fit.interval
    return f"{fit.exponent:.3f} ({100 * fit.level:g} % interval {low:.3f} to {high:.3f})"
