"""Errors of the output law's moments from m ≪ n queries, with the limit as control variate.

The n outputs have average moment (1/n)Σ_i f(Γ_n(x_i)). Γ is cheap at all n queries and Γ_n is not, so with S
a random m of them

    M̂ = (1/n) Σ_i f(Γ(x_i)) + (1/m) Σ_{i∈S} [f(Γ_n(x_i)) − f(Γ(x_i))]

which is right on average over S (where the tokens are Gaussian, sampling/fitted.py has a map closer to Γ_n in Γ's
place). Its square is too large by the variance over S, (1 − m/n) s²/m with s² the
sample variance of the differences; taken off, ‖M̂ − M‖² is right on average too, and may be negative.
Fresh queries x ~ μ are the case n = ∞: the first term is M itself, and the error is that of Γ_n#μ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import Count
from attnlimit.sampling.fitted import FittedGaussian, TokenMoments, is_fitted
from attnlimit.sampling.reference import Power, Reference, output_covariance, output_moment
from attnlimit.sampling.replicates import Sample, replicate
from attnlimit.sampling.statistic import Experiment, Row, Setup, Statistic


@dataclass(frozen=True)
class Moment(Statistic):
    """Frobenius error of the moment E Γ^{⊗order} of the output law, as unbiased squares."""

    name = "moment"
    order: Count

    def experiment(self, setup: Setup) -> Experiment:
        return _spread(MomentErrors(setup, Power.that_fits(self.order, setup.head.V.shape[-2])))


@dataclass(frozen=True)
class Mean(Statistic):
    """Error of the mean of the output law, as unbiased squares."""

    name = "mean"

    def experiment(self, setup: Setup) -> Experiment:
        return Moment(1).experiment(setup)


@dataclass(frozen=True)
class Covariance(Statistic):
    """Frobenius error of the covariance of the output law, as unbiased squares."""

    name = "covariance"

    def experiment(self, setup: Setup) -> Experiment:
        return _spread(MomentErrors(setup, None))


def _spread(experiment: MomentErrors) -> MomentErrors:
    setup = experiment.setup
    if setup.m < 2 and setup.queries is None:
        raise InputError(
            f"Moments of outputs need at least 2 queries, got {setup.m}: their spread is taken off."
        )
    return experiment


@dataclass(frozen=True, eq=False)
class MomentErrors(Experiment):
    """Squared errors of a raw moment (`power`) of the output law, or of its covariance when there is none."""

    power: Power | None

    @cached_property
    def truth(self) -> Reference:
        limit, law = self.setup.limit, self.setup.law
        size = max(2**18, 64 * self.setup.n[-1])
        if self.power is None:
            return output_covariance(limit, law, size)
        return output_moment(limit, law, self.power, size)

    @cached_property
    def fitted(self) -> FittedGaussian | None:
        if not is_fitted(self.setup, self.power):
            return None
        return FittedGaussian(self.setup, 2 if self.power is None else 1)

    @cached_property
    def _needs_truth(self) -> bool:
        """Given queries, and raw moments of fresh ones, are compared with the limit at these very queries."""
        return self.setup.self_attention or (self.power is None and self.setup.queries is None)

    @property
    def reference(self) -> str:
        return self.truth.text if self._needs_truth else f"{super().reference}, at the same queries"

    @property
    def method(self) -> str:
        setup = self.setup
        if setup.queries is not None:
            how = f"output law of {setup.m} given queries"
        elif not setup.self_attention:
            how = f"output law of fresh queries from m = {setup.m}, differences from the limit"
        elif setup.m >= setup.n[-1]:
            how = "all n queries"
        else:
            how = f"control variate on m = {setup.m} of n queries"
        if self.power is not None and not self.power.full:
            how += f", powers {self.power.order} of single coordinates (the whole tensor is too large)"
        return f"{self.drawn()}, {how}"

    def row(self, generator: torch.Generator) -> Row:
        """With Γ as control variate, or the Gaussian fitted to the tokens, whose own error is a second one."""
        truth = self.truth if self._needs_truth else None
        averages = LimitAverages(truth, self.power)
        moments = None if self.fitted is None else TokenMoments(self.fitted)
        all_limits = moments is None and self.setup.self_attention
        squares, controls, exact = [], [], True
        for sample in replicate(self.setup, generator, all_limits):
            if moments is None:
                squares.append(self._square(sample, averages.at(sample), truth))
            elif sample.tokens is None:
                raise TypeError("Tokens that are their own queries are needed.")
            else:
                moments.take(sample.tokens)
                squares.append(self._square(*moments.at(sample, self.truth), truth))
                controls.append(moments.control())
            exact = exact and sample.rest == 0
        row = torch.stack(squares)
        if exact:
            return Row(row, row.clamp_min(0).sqrt())
        return Row(row, None, control=torch.stack(controls) if controls else None)

    def _square(self, sample: Sample, base: list[Tensor] | None, truth: Reference | None) -> Tensor:
        if self.power is None:
            return covariance_square(sample, base, truth)
        return moment_square(sample, base, self.power)


class LimitAverages:
    """(1/n) Σ_i f(Γ(x_i)) − its limit over all n tokens, for growing n, each token counted once.

    f is the power, or, for covariances, the first and second power of Γ(x_i) minus the limit's mean.
    """

    def __init__(self, truth: Reference | None, power: Power | None) -> None:
        self.truth = truth
        self.powers = (Power(1), Power(2)) if power is None else (power,)
        self.sums: list[Tensor] = []

    def at(self, sample: Sample) -> list[Tensor] | None:
        """One difference a power; None for queries that are not tokens, where there is none to add."""
        if sample.all_limits is None or self.truth is None:
            return None
        fresh = sample.all_limits[sample.known :]
        if len(self.powers) == 2:
            fresh = fresh - self.truth.mean.to(fresh)
        totals = [power.total(fresh) for power in self.powers]
        if sample.known:
            totals = [old + new for old, new in zip(self.sums, totals, strict=True)]
        self.sums = totals
        *first, last = [total / len(sample.all_limits) for total in totals]
        return [*first, last - self.truth.value]


def moment_square(sample: Sample, base: list[Tensor] | None, power: Power) -> Float[Tensor, ""]:
    """Unbiased ‖M_n − M‖² for the moment f = `power`; `base` from LimitAverages."""
    y, g = sample.outputs.double(), sample.limits.double()
    error = power.difference(y, g)
    if base is not None:
        error = error + base[0]
    square = error.square().sum()
    return square - sample.rest * power.spread(y, g) if sample.rest else square


def covariance_square(
    sample: Sample, base: list[Tensor] | None, truth: Reference | None
) -> Float[Tensor, ""]:
    """‖Cov_n − Cov‖² for the covariance of the output law (divisor n), its variance over S taken off.

    With everything centred at the truth's mean, z the estimated mean of the n outputs and e_i = y_i − g_i,

        Cov_n ≈ (1/n) Σ g_i g_iᵀ + (1/m) Σ_S (y_i y_iᵀ − g_i g_iᵀ) − z zᵀ + (1 − m/n) Cov_S(e)/m

    is unbiased (the last term undoes the bias of zzᵀ). To first order in z its variance is that of the
    average of (y_i − z)(y_i − z)ᵀ − (g_i − z)(g_i − z)ᵀ. What is left out is quadratic in the error of z,
    of order (s²/m)² where s²/m is taken off: nothing when m = n.
    """
    y, g = sample.outputs.double(), sample.limits.double()
    centre = g.mean(0) if truth is None else truth.mean
    y, g = y - centre, g - centre
    e = y - g
    z, error = e.mean(0), Power(2).difference(y, g)
    if base is not None:
        z, error = z + base[0], error + base[1]
    error = error - torch.outer(z, z).flatten()
    if not sample.rest:
        return error.square().sum()
    error = error + sample.rest * torch.cov(e.T).flatten()
    return error.square().sum() - sample.rest * Power(2).spread(y - z, g - z)
