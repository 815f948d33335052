"""Errors of the mean and of the covariance of the outputs of n Gaussian tokens that attend to each other, both from the
same tokens: with m of the n queries, as `measure_convergence` has them one at a time, for little more than the cost of one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnlimit.designs import Sampling
from attnlimit.errors import InputError
from attnlimit.sampling import Convergence, Own
from attnlimit.sampling.fitted import LEAST_REPLICATES, FittedGaussian, TokenMoments, controlled, is_fitted
from attnlimit.sampling.moments import MomentErrors, covariance_square, moment_square
from attnlimit.sampling.reference import Power, Reference
from attnlimit.sampling.replicates import replicate
from attnlimit.sampling.statistic import Setup, set_up
from attnlimit.studies.fields import Fields
from attnlimit.studies.kind import Cells, Folder, Result, Row, table
from attnlimit.studies.kinds.convergence import Measured
from attnlimit.studies.setting import Setting

STATISTICS = ("mean", "covariance")


class Unit(Fields):
    """Standard errors of the fitted slopes that a precision target counts in."""

    mean: PositiveFloat = 1.0
    covariance: PositiveFloat = 1.0


@dataclass(frozen=True, eq=False)
class Moments(Result):
    """Both curves, with a row of errors a replicate."""

    columns = table("replicate:int statistic:text n:int square")
    by_replicate = STATISTICS

    mean: Measured
    covariance: Measured

    @property
    def curves(self) -> tuple[Measured, Measured]:
        return self.mean, self.covariance

    def rows(self) -> Cells:
        for curve in self.curves:
            for number, n, square, _ in curve.rows():
                yield number, curve.error_of, n, square

    def summary(self) -> dict[str, object]:
        first, told = self.mean.summary(), {}
        for curve in self.curves:
            record = curve.summary()
            kept = ("rms", "rms_standard_error", "fit", "no_fit")
            told[curve.error_of] = {name: record[name] for name in kept if name in record}
        return {**{name: first[name] for name in ("n", "horizon", "rates", "replicates", "method")}, **told}

    def shown(self) -> list[Row]:
        return [row for curve in self.curves for row in curve.shown()]

    def methods(self) -> Row:
        return self.mean.methods()


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


class OutputMoments(Setting):
    """A head on a Gaussian law, at sizes n. A precision's half_width is that of both slopes, each in its `unit`."""

    title = "errors of the outputs' moments"
    result = Moments
    together = True
    narrows = True

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

    def check(self) -> object:
        return self.plan()

    def run(self, replicates: int, seed: int, place: Folder) -> Moments:
        plan = self.plan()
        generator = torch.Generator(plan.law.device).manual_seed(seed)
        both = Both.of(plan)
        found = [both.row(generator) for _ in range(replicates)]
        how, limit, curves = f"control variates on m = {self.queries} of n queries", self.limit(), []
        for k, name in enumerate(STATISTICS):
            squares, controls = (torch.stack([row[which][:, k] for row in found]) for which in (0, 1))
            kept = controlled(squares, controls) if replicates >= LEAST_REPLICATES else squares
            one = Convergence(tuple(plan.n), name, kept.double(), None, how, "closed form")
            curves.append(Measured(one, limit))
        return Moments(*curves)

    def half_width(self, found: Moments, of: str, level: float) -> float:
        """Of the wider of the two slopes' intervals, in units."""
        if of != "slope":
            raise InputError("Kind output_moments has a precision of: slope.")
        units = zip(found.curves, (self.unit.mean, self.unit.covariance), strict=True)
        return max(curve.slope_half_width(level) / unit for curve, unit in units)
