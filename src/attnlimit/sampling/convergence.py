"""Monte Carlo error curves, n tokens against infinitely many: one row a replicate, and the curve with its standard errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.designs import Sampling
from attnlimit.designs.sampling import PLAIN
from attnlimit.discover import built, subclasses
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError, NotKnown, RateNotResolved
from attnlimit.inputs import Repeats, Seeded, as_counts, as_generator
from attnlimit.measures import Measure
from attnlimit.rates import ErrorCurve, PowerFit
from attnlimit.sampling.fitted import LEAST_REPLICATES, controlled
from attnlimit.sampling.statistic import Experiment, Queries, Row, Statistic, set_up

_LEAST_ROWS = 5


@dataclass(frozen=True, eq=False, repr=False)
class Convergence(Drawn):
    """Errors of n tokens against the limit, for every replicate and n.

    Replicates are independent; the sizes within a replicate are not, since smaller sets of keys lie in
    larger ones. Fits must therefore resample whole replicates, as `.fit()` does.
    """

    n: tuple[int, ...]
    statistic: str
    squares: Float[Tensor, "replicates n"]
    """Squared errors, averaged over queries (map) or unbiased and so possibly negative (moments)."""
    norms: Float[Tensor, "replicates n"] | None
    """Errors, averaged over queries; None where only their squares can be estimated without bias."""
    how: str
    """A replicate was measured, in words."""
    reference: str
    agreed: Int[Tensor, "replicates n"] | None = None
    """For the supremum: how many starts ended at the value reported."""

    @property
    def errors(self) -> Float[Tensor, "replicates n"]:
        """The rows: norms where known, else unbiased squares (`errors_are` says which)."""
        return self.squares if self.norms is None else self.norms

    @property
    def errors_are(self) -> str:
        return "unbiased squares" if self.norms is None else "norms"

    @property
    def replicates(self) -> int:
        return len(self.squares)

    @property
    def method(self) -> str:
        return f"Monte Carlo, {self.replicates} replicates, {self.how}"

    @classmethod
    def joined(cls, parts: Sequence[Convergence]) -> Convergence:
        """The replicates of all parts as one experiment."""
        if not parts:
            raise InputError("parts is empty: give at least one experiment to join.")
        rows = {name: [getattr(one, name) for one in parts] for name in ("squares", "norms", "agreed")}
        known: Any = {name: torch.cat(found) for name, found in rows.items() if found[0] is not None}
        return replace(parts[0], **known)

    @property
    def mean(self) -> Float[Tensor, " n"]:
        """Average error over the replicates."""
        return self._known_norms().mean(0)

    @property
    def mean_standard_error(self) -> Float[Tensor, " n"]:
        return self._known_norms().std(0) / self.replicates**0.5

    @property
    def rms(self) -> Float[Tensor, " n"]:
        """Root of the average squared error (0 where the unbiased average is not above 0)."""
        return self.squares.mean(0).clamp_min(0).sqrt()

    @property
    def rms_standard_error(self) -> Float[Tensor, " n"]:
        """By the delta method; infinite where the average square is not above 0."""
        return self.squares.std(0) / self.replicates**0.5 / (2 * self.rms)

    def curve(self, statistic: Literal["mean", "rms"] | None = None) -> ErrorCurve:
        """The errors as one curve ("mean"; "rms" where norms are not known), with the replicates for its fit.

        Unbiased squares may be negative, and a curve of logarithms cannot be resampled through them: the rows are then
        averages of as few replicates as make them all positive, if there are such.
        """
        if list(self.n) != (rising := sorted(set(self.n))):
            return self._of(rising).curve(statistic)
        statistic = statistic or ("rms" if self.norms is None else "mean")
        if statistic == "mean":
            spread, rows = self.mean_standard_error, self._known_norms()
            return ErrorCurve(self.n, self.mean, spread, statistic, self.method, rows=rows)
        squares = self.squares if self.norms is not None else _positive_averages(self.squares)
        spread = self.rms_standard_error.nan_to_num(torch.inf, posinf=torch.inf)
        roots = None if squares is None else squares.sqrt()
        return ErrorCurve(self.n, self.rms, spread, statistic, self.method, rows=roots)

    def _of(self, n: list[int]) -> Convergence:
        """The same at some of its n, in that order."""
        columns = [self.n.index(size) for size in n]
        rows: Any = {name: getattr(self, name) for name in ("squares", "norms", "agreed")}
        known = {name: found[:, columns] for name, found in rows.items() if found is not None}
        return self if self.n == tuple(n) else replace(self, n=tuple(n), **known)

    def fit(self, statistic: Literal["mean", "rms"] | None = None, **options: Any) -> PowerFit:
        """C n^{−exponent} through the curve `statistic`, with an interval from resampling whole replicates: `options` are
        those of `attnlimit.rates.fit_power`."""
        curve = self.curve(statistic)
        if curve.rows is None:
            raise RateNotResolved(
                f"No rate can be fitted: averages of {self.replicates} unbiased squared errors, taken in {_LEAST_ROWS} "
                "groups, are not all above 0, so the noise of the queries left out exceeds the error. Use more queries or "
                "replicates."
            )
        return curve.fit(**options)

    def rows(self) -> list[dict[str, int | float]]:
        """One record for every replicate and n: replicate, n, error (a norm or an unbiased square)."""
        return [
            {"replicate": r, "n": n, "error": error}
            for r, row in enumerate(self.errors.tolist())
            for n, error in zip(self.n, row, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        curve: dict[str, Any] = {
            "rms": self.rms.tolist(),
            "rms_standard_error": self.rms_standard_error.tolist(),
        }
        if self.norms is not None:
            curve |= {"mean": self.mean.tolist(), "mean_standard_error": self.mean_standard_error.tolist()}
        if self.agreed is not None:
            curve["agreed"] = self.agreed.tolist()
        return {
            "n": list(self.n),
            "statistic": self.statistic,
            **curve,
            "replicates": self.replicates,
            "errors": self.errors.tolist(),
            "errors_are": self.errors_are,
            "method": self.method,
            "reference": self.reference,
        }

    def __repr__(self) -> str:
        return (
            f"Convergence({self.statistic}, n = {self.n[0]} … {self.n[-1]}, "
            f"rms {float(self.rms[0]):.3g} … {float(self.rms[-1]):.3g}; {self.method})"
        )

    def _known_norms(self) -> Tensor:
        if self.norms is None:
            raise NotKnown(
                f"The mean of the {self.statistic} error is not known: from some of the queries only the squared "
                "error has no bias. Use .rms, or evaluate all of them (queries at least as many as n)."
            )
        return self.norms


def _positive_averages(squares: Float[Tensor, "replicates n"]) -> Float[Tensor, "rows n"] | None:
    """The rows, averaged in groups as small as make every entry positive; None if that leaves fewer than five."""
    for size in range(1, len(squares) // _LEAST_ROWS + 1):
        groups = squares.tensor_split(len(squares) // size)
        rows = torch.stack([group.mean(0) for group in groups])
        if bool((rows > 0).all()):
            return rows
    return None


Progress: TypeAlias = Callable[[int, int], object]
"""Called with (replicates done, replicates in all)."""


def measure_convergence(
    head: Head,
    law: Measure,
    n: object,
    *,
    statistic: Statistic | str = "map",
    sampling: Sampling = PLAIN,
    queries: Queries = None,
    replicates: Repeats = 32,
    generator: Seeded = 0,
    progress: Progress | None = None,
) -> Convergence:
    """Errors of attention over n tokens against the limit: that of the law, or attention over a whole
    population (an Empirical).

    statistic
        "map" (the default), "mean", "covariance", or an object: `Map`, `Mean`, `Covariance`, `Moment(order)`, `Sup(radius)`.
    sampling
        Which n keys of a population a query reads beside those it keeps. A law's tokens are independent.
    queries
        The queries themselves (m, d), or how many are drawn from the law in each replicate (256 unless told); `Own(m)`:
        m of the n tokens themselves (self-attention); `Given(x, positions)`: with their places among the keys.
    progress
        Called with (done, all) after each replicate.

    >>> from attnlimit import Gaussian
    >>> law = Gaussian(cov=1.0, dim=1)
    >>> measure_convergence(Head([[0.5]]), law, [100, 400], replicates=100, generator=0)
    Convergence(map, n = 100 … 400, rms 0.14 … 0.0708; Monte Carlo, 100 replicates, nested prefixes, \
m = 256 fresh queries a replicate)
    """
    asked = as_statistic(statistic)
    experiment = asked.experiment(set_up(head, law, n, sampling, queries))
    generator = as_generator(generator, law.device)
    rows = []
    for done in range(1, replicates + 1):
        rows.append(experiment.row(generator))
        if progress is not None:
            progress(done, replicates)
    return _gathered(str(asked), experiment, rows)._of(as_counts(n))


def statistics() -> dict[str, type[Statistic]]:
    """All statistics, by name."""
    found: list[type[Statistic]] = subclasses("attnlimit.sampling", Statistic)  # type: ignore[type-abstract]
    return {one.name: one for one in found}


def as_statistic(value: object) -> Statistic:
    """A statistic from itself, its name, or its record {"name": "moment", "order": 3}."""
    return value if isinstance(value, Statistic) else built(statistics(), value, "statistic")


def _gathered(statistic: str, experiment: Experiment, rows: list[Row]) -> Convergence:
    squares, norms, agreed, controls = (_stacked(parts) for parts in zip(*rows, strict=True))
    if not bool(squares.isfinite().all()):
        raise InputError(
            f"The {statistic} error leaves the range of floating point: choose a smaller order, or smaller tokens."
        )
    how = experiment.method
    if controls is not None and len(rows) >= LEAST_REPLICATES:
        squares = controlled(squares, controls)
        how += ", and the tokens' own mean and covariance"
    return Convergence(
        n=experiment.setup.n,
        statistic=statistic,
        squares=squares,
        norms=norms,
        how=how,
        reference=experiment.reference,
        agreed=agreed,
    )


def _stacked(parts: Sequence[Tensor | None]) -> Any:
    """All replicates' as one tensor; None where some have none."""
    known = [part for part in parts if part is not None]
    return torch.stack(known) if len(known) == len(parts) else None
