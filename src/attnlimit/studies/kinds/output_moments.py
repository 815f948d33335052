"""Errors of the mean and of the covariance of the outputs of n Gaussian tokens that attend to each other, both from the
same tokens: with m of the n queries, as `measure_convergence` has them one at a time, for little more than the cost of one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnlimit.designs import Sampling
from attnlimit.errors import InputError, RateNotResolved
from attnlimit.sampling import Convergence, Own
from attnlimit.sampling.fitted import LEAST_REPLICATES, FittedGaussian, TokenMoments, controlled, is_fitted
from attnlimit.sampling.moments import MomentErrors, covariance_square, moment_square
from attnlimit.sampling.powers import Power
from attnlimit.sampling.reference import Reference
from attnlimit.sampling.replicates import replicate
from attnlimit.sampling.setup import Setup, set_up
from attnlimit.studies.fields import Fields
from attnlimit.studies.kinds import Column, Kind, Result
from attnlimit.studies.kinds.setting import Setting

STATISTICS = ("mean", "covariance")


class Unit(Fields):
    """Standard errors of the fitted slopes that a precision target counts in."""

    mean: PositiveFloat = 1.0
    covariance: PositiveFloat = 1.0


class OutputMoments(Setting):
    """A head on a Gaussian law, at sizes n. A precision's half_width is that of both slopes, each in its `unit`."""

    queries: PositiveInt = 256
    unit: Unit = Unit()

    def plan(self) -> Setup:
        head, law = self.build()
        made = set_up(head, law, self.n, Sampling(), Own(self.queries))
        if not is_fitted(made, Power(1)):
            raise InputError(
                f"Kind output_moments is for Gaussian tokens, got {law!r}: use kind convergence."
            )
        return made


def run(what: OutputMoments, replicates: int, seed: int) -> Result:
    plan = what.plan()
    generator = torch.Generator(plan.law.device).manual_seed(seed)
    both = Both.of(plan)
    found = [both.row(generator) for _ in range(replicates)]
    result: Result = {"n": list(plan.n)}
    for k, name in enumerate(STATISTICS):
        squares, controls = (torch.stack([row[which][:, k] for row in found]) for which in (0, 1))
        kept = controlled(squares, controls) if replicates >= LEAST_REPLICATES else squares
        result[name] = kept.tolist()
    return result


@dataclass(frozen=True, eq=False)
class Both:
    """What all replicates share."""

    plan: Setup
    power: Power
    fitted: tuple[FittedGaussian, FittedGaussian]
    truth: tuple[Reference, Reference]

    @classmethod
    def of(cls, plan: Setup) -> Both:
        power = Power.that_fits(1, plan.head.V.shape[-2])
        truth = (MomentErrors(plan, power).truth, MomentErrors(plan, None).truth)
        return cls(plan, power, (FittedGaussian(plan, 1), FittedGaussian(plan, 2)), truth)

    def row(self, generator: torch.Generator) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n 2"]]:
        """One replicate: squared errors, and controls."""
        moments = [TokenMoments(one) for one in self.fitted]
        squares, controls = [], []
        for sample in replicate(self.plan, generator):
            if sample.tokens is None:
                raise TypeError("Tokens that are their own queries are needed.")
            for one in moments:
                one.take(sample.tokens)
            first, second = (one.at(sample, truth) for one, truth in zip(moments, self.truth, strict=True))
            square = covariance_square(*second, self.truth[1])
            squares.append(torch.stack([moment_square(*first, self.power), square]))
            controls.append(torch.stack([one.control() for one in moments]))
        return torch.stack(squares), torch.stack(controls)


def rows(result: Result) -> Iterator[tuple[Any, ...]]:
    for name in STATISTICS:
        for number, squares in enumerate(result[name]):
            for n, square in zip(result["n"], squares, strict=True):
                yield number, name, n, square


def curve(name: str, what: OutputMoments, results: list[Result]) -> Convergence:
    squares = torch.tensor([row for one in results for row in one[name]], dtype=torch.float64)
    method = f"Monte Carlo, {len(squares)} replicates, control variates on m = {what.queries} of n queries"
    return Convergence(tuple(results[0]["n"]), name, squares, None, method, "closed form")


def summary(what: OutputMoments, results: list[Result]) -> dict[str, Any]:
    record: dict[str, Any] = {"n": results[0]["n"], "queries": what.queries, **what.predicted()}
    for name in STATISTICS:
        found = curve(name, what, results)
        told = found.to_dict()
        record["replicates"], record["method"] = found.replicates, found.method
        record[name] = {key: told[key] for key in ("rms", "rms_standard_error")}
        try:
            record[name]["fit"] = found.fit().to_dict()
        except RateNotResolved as problem:
            record[name] |= {"fit": None, "no_fit": str(problem)}
    return record


def half_width(what: OutputMoments, results: list[Result], of: str, level: float) -> float:
    """Of the wider of the two slopes' intervals, in units."""
    if of != "slope":
        raise InputError("Kind output_moments has a precision of: slope.")
    widest = 0.0
    for name in STATISTICS:
        try:
            low, high = curve(name, what, results).fit(level=level).interval
        except (InputError, RateNotResolved):
            return math.inf  # too few replicates to tell
        widest = max(widest, (high - low) / 2 / float(getattr(what.unit, name)))
    return widest


COLUMNS: dict[str, Column] = {"replicate": "int", "statistic": "text", "n": "int", "square": "float"}
KIND = Kind(
    "output_moments",
    OutputMoments,
    run,
    COLUMNS,
    rows,
    summary,
    check=OutputMoments.plan,
    half_width=half_width,
    together=True,
)
