"""Laws whose tails are Gaussian or lighter, by comparison with a Gaussian: E e^{pD(Ax)/2} for a random query x; and for tokens without bounded
support how far n of them reach, and where tilting takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.bounds.hypotheses import check_head, check_known
from attnlimit.errors import HypothesisFailed, InputError
from attnlimit.measures import Measure

SUBGAUSSIAN = "keys are sub-Gaussian: E e^(bᵀ(y−m)) ≤ e^(bᵀPb/2), with their variance proxy P"
NOTHING = 1e-150
"""Stands for sizes of 0, which have no logarithm: a bound is a bound still."""


@dataclass(frozen=True, eq=False)
class QuadraticMoment:
    """log E e^{pD(a)/2} ≤ −½ Σ_i log(1 − pλ_i) + ½p Σ_i c_i²/(1 − pλ_i) for pλ < 1, a = Ax.

    D(a) ≤ s‖a‖² (`log_chi2_slope`). A query of mean m and proxy P (E e^{bᵀ(x−m)} ≤ e^{bᵀPb/2}; P = σ²I, or Σ for a
    Gaussian) has, with g ~ N(0, I) independent of it and E_g e^{gᵀz} = e^{‖z‖²/2} at z = √(ps) a,
        E e^{ps‖a‖²/2} = E_g E_x e^{√(ps) gᵀa} ≤ E_g exp(√(ps) gᵀā + ½ps gᵀAPAᵀg),   ā = E a,
    a Gaussian integral: λ are the eigenvalues of s APAᵀ, c the coordinates of √s ā, and H² = max λ.
    """

    slope: float
    eigenvalues: NDArray[np.float64]
    centre: NDArray[np.float64]

    @classmethod
    def of(cls, head: Head, queries: Measure, slope: float) -> QuadraticMoment:
        if queries.dim != head.query_dim:
            raise InputError(
                f"The head reads {head.query_dim}-dimensional queries, but {queries!r} has dimension {queries.dim}."
            )
        root, mean = queries.proxy_root(head.A), head.score_vector(head.checked(queries.key_mean))
        U, h, _ = torch.linalg.svd(math.sqrt(slope) * root, full_matrices=True)
        eigenvalues = torch.nn.functional.pad(h.square(), (0, len(U) - len(h)))
        return cls(
            slope,
            eigenvalues.double().numpy(force=True),
            (math.sqrt(slope) * U.T @ mean).double().numpy(force=True),
        )

    @property
    def horizon(self) -> float:
        return math.sqrt(self.eigenvalues.max())

    @property
    def exponent(self) -> float:
        """min(1/2, 1/(2H²)); for H ≥ 1 up to a power of log n."""
        return 0.5 if self.horizon <= 1 else 0.5 / self.horizon**2

    def log_at(self, p: float) -> float:
        """The right-hand side, for p max λ < 1."""
        left = 1 - p * self.eigenvalues
        return float(-0.5 * np.log(left).sum() + 0.5 * p * (self.centre**2 / left).sum())

    def best(self, n: float, size: float = 1.0, growth: float = 0.0) -> float:
        """min over p ∈ [0, 1] of n^{−p/2} E (size + growth·‖a‖) e^{pD/2}; every p gives a bound, and so does every q > p in
        ‖a‖ e^{ps‖a‖²/2} ≤ e^{qs‖a‖²/2}/√(es(q − p))."""
        from scipy.optimize import minimize_scalar  # slow to import

        most = (1 - 1e-12) / max(self.horizon**2, 1e-300)

        def at(p: float) -> float:
            log_size = math.log(size) + self.log_at(p) if size else -math.inf
            if growth:
                gaps = min(most - p, 50.0) * np.linspace(0.05, 0.95, 19)
                steep = [self.log_at(p + gap) - 0.5 * math.log(math.e * self.slope * gap) for gap in gaps]
                log_size = float(np.logaddexp(log_size, math.log(growth) + min(steep)))
            return log_size - 0.5 * p * math.log(n)

        end = min(1.0, most * (0.999 if growth else 1.0))
        inner = minimize_scalar(at, bounds=(0, end), method="bounded", options={"xatol": 1e-9 * end})
        return math.exp(min(float(inner.fun), at(end), at(0.0)))


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
        np.logaddexp(
            2 * math.log(max(light.norm, NOTHING)) + min(more),
            2 * math.log(max(radius, NOTHING)) + light.keys.log_at(p),
        )
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
