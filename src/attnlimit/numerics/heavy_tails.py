"""Sums of weights with heavy tails, P(w > t) ~ c t^{−α}: stable laws, Poisson–Dirichlet weights, and what n weights do exactly.

Past the mean (α < 1) the weights p_i = w_i/W of n keys tend to Poisson–Dirichlet weights PD(α, 0), those of the points
Γ_i^{−1/α} of a Poisson process; between mean and variance (1 < α < 2) sums have stable laws.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.atoms import HEAVY, Atoms
from attnlimit.numerics.laplace import tau_grid


def largest_of_poisson_dirichlet(index: float) -> float:
    """E of the largest of PD(α, 0) weights: ∫ e^{−t}/ψ dt, ψ = e^{−t} + Γ(1−α) t^α P(1−α, t), P the incomplete gamma ratio.

    >>> round(largest_of_poisson_dirichlet(0.5), 4)
    0.6265
    """
    if not 0 < index < 1:
        return float(index == 0)
    gamma = math.gamma(1 - index)

    from scipy.integrate import quad  # slow to import

    def share(t: float) -> float:
        low = math.exp(-t)
        return low / (low + gamma * t**index * float(scipy.special.gammainc(1 - index, t)))

    return float(quad(share, 0, 1, epsabs=1e-12)[0] + quad(share, 1, np.inf, epsabs=1e-12)[0])


@lru_cache(maxsize=256)
def stable_typical(index: float) -> float:
    """Median of |Z| for Z of the stable law of mean 0 with P(Z > t) ~ t^{−α} and no tail below, 1 < α < 2."""
    from scipy import stats  # slow to import

    law = stats.levy_stable(index, 1.0, scale=_unit_tail(index))
    low, high = 0.0, 1.0
    while law.cdf(high) - law.cdf(-high) < 0.5:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if law.cdf(middle) - law.cdf(-middle) < 0.5 else (low, middle)
    return high


def _unit_tail(index: float) -> float:
    """σ with P(Z > t) ~ t^{−α} for the totally skewed S_α(σ, 1, 0): C_α σ^α = 1, C_α = (2/π) Γ(α) sin(πα/2)."""
    return float((2 / math.pi * math.gamma(index) * math.sin(math.pi * index / 2)) ** (-1 / index))


def mean_largest(scores: Float[Tensor, " j"], log_mass: Float[Tensor, " j"], n: int) -> float:
    """E max_i w_i/Σw of n keys = Σ_j w_j ∫ (φ_j^n − φ_{j−1}^n) dt, φ_j(t) = E[e^{−tw}; w ≤ w_j], scores z = log w in order. Keys of one
    atom tie, which costs a few 1e-4 where neighbours are 0.1 apart."""
    zero = torch.zeros(1, len(scores), 1, dtype=torch.float64)
    atoms = Atoms(scores[None], log_mass[None], zero, zero[..., 0], zero[:, 0])
    mass, total = log_mass.exp(), torch.zeros((), dtype=torch.float64)
    above = torch.nn.functional.pad(mass.flip(0).cumsum(0).flip(0)[1:], (0, 1))
    for part in tau_grid(atoms, n, None, late=True)[0].split(64):
        y = (part[:, None] + scores).clamp_max(HEAVY).exp()
        lost = (mass * -torch.expm1(-y)).cumsum(1) + above
        phi = (1 - lost).clamp_min(1e-300)
        last = (mass * torch.exp(-y) / phi).clamp_max(1 - 1e-15)
        power = torch.exp(n * torch.log1p(-lost.clamp_max(1 - 1e-16)))
        total = total + (y * power * -torch.expm1(n * torch.log1p(-last))).sum()
    return atoms.step * float(total)
