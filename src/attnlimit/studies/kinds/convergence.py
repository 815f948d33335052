"""Monte Carlo error curves of a head on a law: any statistic, any policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator

from attnlimit.designs import Block, Coins, Different, Independent, Kept, Prefix, Sampling, Strata
from attnlimit.errors import InputError, RateNotResolved
from attnlimit.rates import ErrorCurve, PowerFit
from attnlimit.sampling import Convergence as Experiment
from attnlimit.sampling import measure_convergence
from attnlimit.sampling.measure import as_statistic
from attnlimit.sampling.setup import Fresh, Own, set_up
from attnlimit.sampling.statistic import Statistic
from attnlimit.studies.kind import Array, Cell, Column, Kind, Row
from attnlimit.studies.setting import CurveResult, Limit, Setting, told

LEAST = 2
"""Replicates of a task: errors are known by their spread."""


class Convergence(Setting):
    """The arguments of `attnlimit.measure_convergence`, with which they share their meaning."""

    statistic: Literal["map", "mean", "covariance", "moment", "sup"] = "map"
    queries: PositiveInt | None = None
    self_attention: bool = False
    policy: Literal["iid", "without-replacement", "bernoulli", "prefix", "block", "stratified", "window"] = (
        "iid"
    )
    window: PositiveInt | None = None
    order: PositiveInt | None = None
    radius: PositiveFloat | None = None
    restarts: PositiveInt = 16

    @model_validator(mode="after")
    def _fits(self) -> Convergence:
        pairs = (
            ("order", "statistic", "moment"),
            ("radius", "statistic", "sup"),
            ("window", "policy", "window"),
        )
        for field, chooser, choice in pairs:
            if (getattr(self, field) is None) == (getattr(self, chooser) == choice):
                raise ValueError(f"{field} and {chooser}: {choice} go together")
        return self


@dataclass(frozen=True, eq=False)
class Measured(CurveResult):
    """One row of errors a replicate."""

    columns: ClassVar[Mapping[str, Column]] = {
        "replicate": "int",
        "n": "int",
        "square": "float",
        "error": "float",
    }

    n: tuple[int, ...]
    statistic: str
    squares: Array
    """(replicates, n)"""
    norms: Array | None
    method: str
    reference: str
    limit: Limit | None

    def rows(self) -> Iterator[Sequence[Cell]]:
        norms = [[None] * len(self.n)] * len(self.squares) if self.norms is None else self.norms.tolist()
        for replicate, (squares, errors) in enumerate(zip(self.squares.tolist(), norms, strict=True)):
            for n, square, error in zip(self.n, squares, errors, strict=True):
                yield replicate, n, square, error

    @classmethod
    def joined(cls, parts: Sequence[Measured]) -> Measured:
        """The replicates of all tasks as one experiment."""
        first, norms = parts[0], [one.norms for one in parts if one.norms is not None]
        return cls(
            first.n,
            first.statistic,
            torch.cat([one.squares for one in parts]),
            torch.cat(norms) if norms else None,
            first.method,
            first.reference,
            first.limit,
        )

    @cached_property
    def experiment(self) -> Experiment:
        method = f"Monte Carlo, {len(self.squares)} replicates, {self.method}"
        return Experiment(self.n, self.statistic, self.squares, self.norms, method, self.reference)

    @property
    def curve(self) -> ErrorCurve:
        found = self.experiment
        noise = found.rms_standard_error.nan_to_num(math.inf, math.inf)
        return ErrorCurve(self.n, found.rms, noise, method=found.method)

    @property
    def replicates(self) -> int:
        return len(self.squares)

    @property
    def error_of(self) -> str:
        return self.statistic

    @property
    def fit(self) -> PowerFit | None:
        return self._fitted if isinstance(self._fitted, PowerFit) else None

    @cached_property
    def _fitted(self) -> PowerFit | str:
        """The fit, or why there is none."""
        try:
            return self.experiment.fit()
        except (InputError, RateNotResolved) as problem:
            return str(problem)

    @property
    def sharp(self) -> float | None:
        known = self.statistic == "map" and self.limit is not None
        return float(self.limit.rates.mean) if known and self.limit is not None else None

    def summary(self) -> dict[str, Any]:
        known = {
            key: value
            for key, value in self.experiment.to_dict().items()
            if key not in ("errors", "errors_are")
        }
        fit = {"fit": None, "no_fit": self._fitted} if self.fit is None else {"fit": self.fit.to_dict()}
        return {**known, **fit, **told(self.limit)}

    def shown(self) -> list[Row]:
        return [{"statistic": self.statistic, "replicates": self.replicates, **super().shown()[0]}]

    def methods(self) -> Row:
        fit = {} if self.fit is None else {"Fit": self.fit.method}
        return {"Method": self.experiment.method, "Compared with": self.reference, **fit}


DRAWS = {
    "iid": Independent(),
    "without-replacement": Different(),
    "bernoulli": Coins(),
    "prefix": Prefix(),
    "block": Block(),
    "stratified": Strata(),
    "window": Different(),
}


def _method(what: Convergence) -> tuple[Statistic, Sampling, Fresh]:
    options: dict[str, dict[str, object]] = {
        "moment": {"order": what.order},
        "sup": {"radius": what.radius, "restarts": what.restarts},
    }
    sampling = Sampling(draw=DRAWS[what.policy], kept=Kept(around=what.window or 0))
    count = {} if what.queries is None else {"count": what.queries}
    queries = Own(**count) if what.self_attention else Fresh(**count)
    return as_statistic(options.get(what.statistic, {}) | {"name": what.statistic}), sampling, queries


def check(what: Convergence) -> None:
    statistic, sampling, queries = _method(what)
    statistic.experiment(set_up(*what.build(), what.n, sampling, queries))


def run(what: Convergence, replicates: int, seed: int, place: Path | None) -> Measured:
    head, law = what.build()
    statistic, sampling, queries = _method(what)
    found = measure_convergence(
        head,
        law,
        what.n,
        statistic=statistic,
        sampling=sampling,
        queries=queries,
        replicates=replicates,
        generator=torch.Generator(law.device).manual_seed(seed),
    )
    return Measured(
        found.n,
        found.statistic,
        found.squares.double(),
        None if found.norms is None else found.norms.double(),
        found.method.split(" replicates, ", 1)[1],
        found.reference,
        what.limit(),
    )


def half_width(what: Convergence, found: Measured, of: str, level: float) -> float:
    """Of the fitted exponent's interval; or of the error's, relative to it, at the n where that is widest."""
    if of == "slope":
        try:
            low, high = found.experiment.fit(level=level).interval
        except (InputError, RateNotResolved):
            return math.inf  # too few replicates to tell
        return (high - low) / 2
    from scipy import stats  # it takes longer to import than most tasks to run

    relative = found.experiment.rms_standard_error / found.experiment.rms
    quantile = float(stats.t.ppf((1 + level) / 2, len(found.squares) - 1))
    return quantile * float(relative.nan_to_num(math.inf, posinf=math.inf).max())


KIND = Kind(
    name="convergence",
    title="Monte Carlo error curves",
    what=Convergence,
    result=Measured,
    run=run,
    check=check,
    half_width=half_width,
    together=True,
    least=LEAST,
)
