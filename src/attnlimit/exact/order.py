"""The largest of n independent scores: expectations of the key that has it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import betaincinv
from torch import Tensor

STEP = 0.125
"""In log E: the integrand is analytic in a strip of half-width π/2, so the trapezoid rule errs by e^{−79}."""
PANELS, PANEL_NODES = 46, 12
"""Halving panels from 1 down to 2^−46, well below 1/n, and Gauss–Legendre nodes in each."""


def top_quantiles() -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Nodes E and weights with E f(max) = Σ weight · f(F⁻¹(e^{−E/n})).

    E f(max) = ∫ n F^{n−1} f dF, and F(max)ⁿ is uniform on (0, 1): with −log of it a standard exponential E,
    the integral is that of f(F⁻¹(e^{−E/n})) e^{−E} for every n, taken by the trapezoid rule in log E.
    """
    t = np.arange(-45.0, 4.2, STEP)
    return np.exp(t), STEP * np.exp(t - np.exp(t))


def cap_moments(order: int, n: Int[np.ndarray, " k"]) -> Float[Tensor, "2 k"]:
    """E h and E h² of the least h = (1 − c)/2 among n keys, c the height of a uniform point on the sphere of R^order.

    h is Beta(α, α) with α = (order − 1)/2; in R¹ it is 0 or 1.
    """
    if order == 1:
        return torch.as_tensor(0.5 ** n.astype(float)).expand(2, -1)
    E, weight = top_quantiles()
    h = cap_quantile(order, E / n[:, None])
    return torch.as_tensor(np.stack([h @ weight, h**2 @ weight]))


def cap_quantile(order: int, hazard: Float[np.ndarray, "*s"]) -> Float[np.ndarray, "*s"]:
    """h with P(cap < h) = 1 − e^{−hazard}; either tail is kept to full relative precision."""
    alpha = (order - 1) / 2
    below = betaincinv(alpha, alpha, np.minimum(-np.expm1(-hazard), 0.5))
    above = 1 - betaincinv(alpha, alpha, np.minimum(np.exp(-hazard), 0.5))
    return np.where(hazard < np.log(2), below, above)


class Levels(NamedTuple):
    """The distinct scores of finitely many keys, best first; keys of one level tie."""

    score: Float[Tensor, " l"]
    mass: Float[Tensor, " l"]
    mean: Float[Tensor, "l p"]
    """Mean value of the level's keys."""
    spread: Float[Tensor, " l"]
    """Mean square distance of their values from that mean."""

    @classmethod
    def of(cls, scores: Tensor, mass: Tensor, mean: Tensor, spread: Tensor, slack: float) -> Levels:
        """Levels of atoms (j,), values (j, p): neighbours in score within `slack` (rounding) are ties."""
        order = torch.argsort(torch.where(mass > 0, scores, -torch.inf), descending=True)
        order = order[: int((mass > 0).sum())]
        scores, mass, mean, spread = scores[order], mass[order], mean[order], spread[order]
        new = torch.cat([scores.new_zeros(1), (-scores.diff() > slack).to(scores)])
        level = new.cumsum(0).long()
        count = int(level[-1]) + 1

        def total(each: Tensor) -> Tensor:
            return each.new_zeros(count, *each.shape[1:]).index_add_(0, level, each)

        masses = total(mass)
        means = total(mass[:, None] * mean) / masses[:, None]
        shared = total(torch.ones_like(mass))[level] > 1  # a key alone is its own mean, without rounding
        square = (mean - means[level]).square().sum(-1) * shared + spread
        first = torch.cat([scores[:1], scores[1:][new[1:] > 0]])
        return cls(first, masses, means, total(mass * square) / masses)


def finite_top(
    levels: Levels, limit: Float[Tensor, " p"], n: Float[Tensor, " k"]
) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"], Float[Tensor, " k"]]:
    """E‖hardmax of n keys − limit‖², ‖E(hardmax of n keys) − limit‖² and E(best score − score of the n keys' top),
    keys drawn with replacement.

    With F the mass at or below a level and p its own, it is the top with probability Fⁿ − (F − p)ⁿ; its M ≥ 1 keys
    in the sample are averaged, so their spread counts with E[1/M].
    """
    above = torch.cat([levels.mass.new_zeros(1), levels.mass.cumsum(0)[:-1]])
    at_or_below = levels.mass.flip(0).cumsum(0).flip(0)
    log_F = torch.where(above < 0.5, torch.log1p(-above.clamp_max(0.5)), at_or_below.log())
    share = (levels.mass / at_or_below).clamp_max(1.0)
    share[-1] = 1.0  # nothing lies below the last level
    reach = torch.exp(n[:, None] * log_F)
    chance = reach * -torch.expm1(n[:, None] * torch.log1p(-share))
    error = levels.mean - limit
    square, bias = chance @ error.square().sum(-1), (chance @ error).square().sum(-1)
    tied = levels.spread > 0
    if bool(tied.any()):
        for k, count in enumerate(n.tolist()):
            inverse = reach[k, tied] * inverse_count(share[tied], count)
            square[k] += inverse @ levels.spread[tied]
    return square, bias, chance @ (levels.score[0] - levels.score)


def inverse_count(share: Float[Tensor, " l"], n: float) -> Float[Tensor, " l"]:
    """E[1/M; M ≥ 1] for M binomial (n, ρ): ∫₀¹ ((1 − ρ + ρx)ⁿ − (1 − ρ)ⁿ)/x dx, on panels that halve towards x = 1."""
    nodes, weights = np.polynomial.legendre.leggauss(PANEL_NODES)
    low = np.append(0.5 ** np.arange(1, PANELS + 1), 0.0)
    width = np.append(0.5 ** np.arange(1, PANELS + 1), 0.5**PANELS)
    delta = torch.as_tensor((low[:, None] + width[:, None] * (nodes + 1) / 2).ravel()).to(share)  # 1 − x
    weight = torch.as_tensor((width[:, None] * weights / 2).ravel()).to(share)
    inverse = torch.zeros_like(share)
    for rows in torch.arange(len(share)).split(4096):
        rho = share[rows, None]
        left = 1 - rho * delta
        drop = torch.expm1(n * torch.log1p(-rho * (1 - delta) / left))
        inverse[rows] = (torch.exp(n * torch.log1p(-rho * delta)) * -drop / (1 - delta)) @ weight
    return inverse
