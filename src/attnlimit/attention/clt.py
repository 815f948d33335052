"""The central limit theorem of attention, by the delta method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head, LinearHead
from attnlimit.errors import InputError, LimitDoesNotExist
from attnlimit.inputs import Array, as_count
from attnlimit.measures.base import Measure


@dataclass(frozen=True, eq=False, repr=False)
class CLT:
    """√n (Γ_n(x) − Γ(x)) → N(0, covariance), and E Γ_n(x) − Γ(x) = bias/n + o(1/n)."""

    log_chi2: Float[Tensor, "*all"]
    """D(a) = Λ(2a) − 2Λ(a) = log(1 + χ²(μ_a ‖ μ)): n tokens count like n e^{−D}."""
    shape: Float[Tensor, "*all dv dv"]
    """V[Cov_{2a} + δδᵀ]Vᵀ: the covariance without its factor e^D."""
    shift: Float[Tensor, "*all dv"]
    """Vδ, δ = ∇Λ(2a) − ∇Λ(a): minus the bias without its factor e^D."""

    least_effective_tokens = 30.0

    @property
    def covariance(self) -> Float[Tensor, "*all dv dv"]:
        """e^D V[Cov_{2a} + δδᵀ]Vᵀ."""
        return self._factor()[..., None, None] * self.shape

    @property
    def bias(self) -> Float[Tensor, "*all dv"]:
        """The coefficient of 1/n in E Γ_n − Γ: −e^D V δ."""
        return -self._factor()[..., None] * self.shift

    def effective_tokens(self, n: int) -> Float[Tensor, "*all"]:
        """n e^{−D(a)}."""
        return as_count(n) * (-self.log_chi2).exp()

    def standard_error(self, n: int) -> Float[Tensor, "*all dv"]:
        """√(diag(covariance)/n), refused below 30 effective tokens, where the theorem says nothing yet."""
        effective = self.effective_tokens(n)
        if bool((effective < self.least_effective_tokens).any()):
            raise LimitDoesNotExist(
                f"No error bar from the central limit theorem: n = {n} tokens count like {float(effective.min()):.3g} "
                f"(n e^(−D), D = {float(self.log_chi2.max()):.3g}), and at least {self.least_effective_tokens:g} are needed. "
                "Use attnlimit.exact_error, which holds for every n."
            )
        return (self.covariance.diagonal(dim1=-2, dim2=-1) / n).sqrt()

    def __repr__(self) -> str:
        worst = float(self.log_chi2.max()) if self.log_chi2.numel() else 0.0
        return f"CLT({self.log_chi2.numel()} queries, log χ² up to {worst:.4g})"

    def to_dict(self) -> dict[str, Any]:
        """Covariance and bias over n, as plain lists."""
        arrays = {"log_chi2": self.log_chi2, "covariance": self.covariance, "bias": self.bias}
        return {name: array.tolist() for name, array in arrays.items()}

    def _factor(self) -> Tensor:
        factor = self.log_chi2.exp()
        if not bool(torch.isfinite(factor).all()):
            raise LimitDoesNotExist(
                f"The central limit covariance overflows: e^D with D = {float(self.log_chi2.max()):.4g}. "
                "It would hold only for n ≫ e^D tokens; use .log_chi2 and .shape, or attnlimit.exact_error."
            )
        return factor


def clt(head: Head, measure: Measure, x: Array) -> CLT:
    """C(a) = e^{D(a)} V[Cov_{2a} + δδᵀ]Vᵀ with D(a) = Λ(2a) − 2Λ(a), δ = ∇Λ(2a) − ∇Λ(a), a = Ax.

    For tokens (an Empirical measure) this is the plug-in n Σ_j p_j² (v_j − Γ)(v_j − Γ)ᵀ.
    """
    if isinstance(head, LinearHead):
        raise InputError(
            "Linear attention is a plain average, not a softmax: its error is the covariance of V y yᵀAx over n."
        )
    head.check_fits(measure)
    a = head.score_vector(head.checked(x))
    measure.tilted_mean(a)  # refuses with its own words where there is no limit at all
    if not bool(measure.in_domain(2 * a).all()):
        raise LimitDoesNotExist(
            f"No central limit theorem: Λ(2a) is infinite for {measure!r} (finite on {measure.domain}), so n-token "
            f"attention has a limit at these queries but no finite variance.{_stable(measure, a)} Use head.scaled(kappa) with "
            "kappa ≤ 1/2."
        )
    log_chi2 = measure.cgf(2 * a) - 2 * measure.cgf(a)
    delta = measure.tilted_mean(2 * a) - measure.tilted_mean(a)
    spread = measure.tilted_value_cov(2 * a) + delta[..., :, None] * delta[..., None, :]
    half = head.read_linear(spread.contiguous())
    return CLT(log_chi2, head.read_linear(half.mT.contiguous()), head.read_linear(delta))


def _stable(measure: Measure, a: Tensor) -> str:
    """The law of the error there, in words, at the worst query."""
    flat = a.reshape(-1, a.shape[-1])
    tails = [tail for one in flat[~measure.in_domain(2 * flat)] if (tail := measure.tail(one)) is not None]
    if not tails:
        return ""
    index = min(tail.index for tail in tails)
    return (
        f" Weights have tail index α = {index:.3g}: the error is of order n^−(1 − 1/α) = n^−{1 - 1 / index:.3g} up to logarithms, with a "
        "stable law (attnlimit.heavy_tails)."
    )
