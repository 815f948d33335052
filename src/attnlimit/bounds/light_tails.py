"""Laws without bounded support whose tails are Gaussian or lighter: how far n tokens reach, and where tilting takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.bounds.gaussian_comparison import QuadraticMoment
from attnlimit.bounds.hypotheses import check_head, check_known
from attnlimit.errors import HypothesisFailed
from attnlimit.measures import Measure

SUBGAUSSIAN = "keys are sub-Gaussian: E e^(bᵀ(y−m)) ≤ e^(bᵀPb/2), with their variance proxy P"


@dataclass(frozen=True, eq=False)
class LightTails:
    """Tokens y of mean m with E e^{bᵀ(y−m)} ≤ e^{bᵀPb/2}, P ≼ σ²I, read by V."""

    values: QuadraticMoment
    """E e^{p‖V(y−m)‖²/2} ≤ Π(1 − pλ_i)^{−1/2}, λ the eigenvalues of VPVᵀ; equal for Gaussians."""
    keys: QuadraticMoment
    """The same of y − m."""
    norm: float
    """‖V‖₂."""
    offset: float
    growth: float
    """β, κ with (E_a‖V(y−m)‖²)^{1/2} ≤ β + κ‖a‖ for the law tilted by a, so that ‖Γ − Vm‖ is at most that too."""

    @classmethod
    def of(cls, head: Head, law: Measure, bound: str) -> LightTails:
        """Refused where there is no variance proxy.

        β = σ‖V‖_F and κ = σ²‖V‖ where tilting narrows the law, as ∇²Λ ≼ σ²I. In general, by Donsker and Varadhan,
        c E_a‖V(y−m)‖² ≤ KL(μ_a ‖ μ) + log E e^{c‖V(y−m)‖²}; KL = aᵀ∇Λ(a) − Λ(a) ≤ Λ(2a) − 2Λ(a) ≤ 2σ²‖a‖² by convexity, and
        c = 1/(4σ²‖V‖²) with −log(1 − x/2) ≤ x log 2 gives 8σ⁴‖V‖²‖a‖² + 2 log 2 σ²‖V‖_F².
        """
        check_head(head, law)
        check_known(law, bound)
        if law.variance_proxy is None:
            raise HypothesisFailed(
                f"The {bound} bound needs bounded or sub-Gaussian tokens, but {law!r} has radius = inf and no variance proxy: one "
                "far token could move the output by any amount. Use attnlimit.exact_error, or a population Empirical(tokens)."
            )
        V, deviation = head.V, math.sqrt(law.variance_proxy)
        norm, size = float(torch.linalg.matrix_norm(V, 2)), float(V.norm())
        wide, far = (1.0, 1.0) if law.narrows else (math.sqrt(2 * math.log(2)), 2 * math.sqrt(2))
        return cls(
            _moment(law.proxy_root(V)),
            _moment(law.proxy_root(torch.eye(law.dim).to(V))),
            norm,
            wide * deviation * size,
            far * deviation**2 * norm,
        )

    def reach(self, log_count: Tensor, which: str = "values") -> Tensor:
        """r(L) = min_p (2/p)(L + log E e^{p‖ξ‖²/2}), ξ = V(y−m) or y − m: of n tokens E max‖ξ‖² ≤ r(log n) (Jensen), and
        max‖ξ‖² ≤ r(log n/δ) with probability 1 − δ (Markov). Any p gives a bound, so a grid will do."""
        moment = self.values if which == "values" else self.keys
        p = _grid(moment)
        log_mean = log_count.new_tensor([moment.log_at(one) for one in p])
        return (2 / log_count.new_tensor(p) * (log_count[..., None] + log_mean)).amin(-1)


def log_kernel_moment(light: LightTails, radius: float, p: float) -> float:
    """log E e^{p‖y−m‖²/2}(‖V(y−m)‖² + r²), with z ≤ e^{τz}/(eτ) for the first part, the best τ of some."""
    free = 1 / light.keys.eigenvalues.max() - p
    more = [
        light.keys.log_at(p + share * free) - math.log(math.e * share * free / 2)
        for share in np.linspace(0.05, 0.95, 19)
    ]
    return float(
        np.logaddexp(2 * math.log(light.norm) + min(more), 2 * math.log(radius) + light.keys.log_at(p))
    )


def kernel_grid(light: LightTails) -> list[float]:
    """p = 2t² to try for features of e^{pᵀq} at scale t."""
    return _grid(light.keys)


def _grid(moment: QuadraticMoment) -> list[float]:
    """p with pλ < 1, near both ends."""
    share = 1 / (1 + np.exp(np.linspace(-6, 6, 33)))
    return list(share / moment.eigenvalues.max())


def _moment(root: Tensor) -> QuadraticMoment:
    eigenvalues = torch.linalg.svdvals(root).square().clamp_min(1e-30).double().numpy(force=True)
    return QuadraticMoment(1.0, eigenvalues, np.zeros_like(eigenvalues))
