"""Monte Carlo error curves of a head on a law: any statistic, any sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from pydantic import PlainSerializer, PlainValidator, PositiveInt

from attnlimit.designs import Sampling
from attnlimit.discover import record
from attnlimit.errors import InputError, RateNotResolved
from attnlimit.rates import ErrorCurve, PowerFit
from attnlimit.sampling import Convergence as Experiment
from attnlimit.sampling import Map, measure_convergence
from attnlimit.sampling.convergence import as_statistic
from attnlimit.sampling.statistic import Fresh, Own, Statistic, set_up
from attnlimit.studies.fields import SamplingField
from attnlimit.studies.kind import Cells, Folder, Row, crossed, table
from attnlimit.studies.setting import CurveResult, Limit, Setting, limit_record

LEAST = 2
"""Replicates of a task: errors are known by their spread."""


@dataclass(frozen=True, eq=False)
class Measured(CurveResult):
    """One row of errors a replicate."""

    columns = table("replicate:int n:int square error")
    by_replicate = ("experiment",)

    experiment: Experiment
    limit: Limit | None

    def rows(self) -> Cells:
        found = self.experiment
        return crossed([range(found.replicates), found.n], found.squares, found.norms)

    @property
    def curve(self) -> ErrorCurve:
        return self.experiment.curve("rms")

    @property
    def replicates(self) -> int:
        return self.experiment.replicates

    @property
    def error_of(self) -> str:
        return self.experiment.statistic

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

    def slope_half_width(self, level: float) -> float:
        """Of the fitted exponent's interval."""
        try:
            low, high = self.experiment.fit(level=level).interval
        except (InputError, RateNotResolved):
            return math.inf  # too few replicates to tell
        return (high - low) / 2

    @property
    def sharp(self) -> float | None:
        return float(self.limit.rates.mean) if self.error_of == "map" and self.limit is not None else None

    def summary(self) -> dict[str, object]:
        known = self.experiment.to_dict()
        del known["errors"], known["errors_are"]
        fit = {"fit": None, "no_fit": self._fitted} if self.fit is None else {"fit": self.fit.to_dict()}
        return {**known, **fit, **limit_record(self.limit)}

    def shown(self) -> list[Row]:
        return [{"statistic": self.error_of, "replicates": self.replicates, **super().shown()[0]}]

    def methods(self) -> Row:
        fit = {} if self.fit is None else {"Fit": self.fit.method}
        return {"Method": self.experiment.method, "Compared with": self.experiment.reference, **fit}


class Convergence(Setting):
    """The arguments of `attnlimit.measure_convergence`, with which they share their meaning: `statistic` by its name, or
    {name: moment, order: 3}, {name: sup, radius: 2}; `sampling` as {draw: different, kept: {around: 8}, weight: rest}."""

    title = "Monte Carlo error curves"
    result = Measured
    together = True
    narrows = True
    least = LEAST

    statistic: Annotated[
        Statistic, PlainValidator(as_statistic), PlainSerializer(lambda one: record(one.name, one))
    ] = Map()
    queries: PositiveInt | None = None
    self_attention: bool = False
    sampling: SamplingField = Sampling()

    def asked(self) -> Fresh:
        """The queries."""
        count = {} if self.queries is None else {"count": self.queries}
        return Own(**count) if self.self_attention else Fresh(**count)

    def run(self, replicates: int, seed: int, place: Folder) -> Measured:
        head, law = self.build()
        found = measure_convergence(
            head,
            law,
            self.n,
            statistic=self.statistic,
            sampling=self.sampling,
            queries=self.asked(),
            replicates=replicates,
            generator=torch.Generator(law.device).manual_seed(seed),
        )
        return Measured(found, self.limit())

    def check(self) -> None:
        self.statistic.experiment(set_up(*self.build(), self.n, self.sampling, self.asked()))

    def half_width(self, found: Measured, of: str, level: float) -> float:
        """Of the fitted exponent's interval; or of the error's, relative to it, at the n where that is widest."""
        if of == "slope":
            return found.slope_half_width(level)
        from scipy import stats  # it takes longer to import than most tasks to run

        relative = found.experiment.rms_standard_error / found.experiment.rms
        quantile = float(stats.t.ppf((1 + level) / 2, found.replicates - 1))
        return quantile * float(relative.nan_to_num(math.inf, posinf=math.inf).max())
