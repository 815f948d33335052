"""E e^{pD(Ax)/2} for a random query x, by comparison with a Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from attnlimit.attention import Head
from attnlimit.errors import InputError
from attnlimit.measures import Measure


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
