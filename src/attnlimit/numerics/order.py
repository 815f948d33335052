"""The largest of n independent scores: expectations of the key that has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.numerics.atoms import Atoms

STEP = 0.125
"""In log E: the integrand is analytic in a strip of half-width π/2, so the trapezoid rule errs by e^{−79}."""
PANELS, PANEL_NODES = 46, 12
"""Halving panels from 1 down to 2^−46, well below 1/n, and Gauss–Legendre nodes in each."""
LIGHT, NEVER = 50.0, 700.0
"""Keys lighter by e^{−50}/n than one that n keys have are left out. With finitely many keys the error falls
exponentially in n, so that one is had but for a probability of e^{−700}, which underflows."""
WIDEST = 4000.0
"""Scores that matter may spread this far; beyond, the grids are too long and the largest nearly takes all."""


class TooSharp(InputError):
    """κ is too large for these n keys: softmax is nearly hardmax."""


def top_quantiles() -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Nodes E and weights with E f(max) = Σ weight · f(F⁻¹(e^{−E/n})).

    E f(max) = ∫ n F^{n−1} f dF, and F(max)ⁿ is uniform on (0, 1): with −log of it a standard exponential E,
    the integral is that of f(F⁻¹(e^{−E/n})) e^{−E} for every n, taken by the trapezoid rule in log E.
    """
    t = np.arange(-45.0, 4.2, STEP)
    return np.exp(t), STEP * np.exp(t - np.exp(t))


def normal_maximum(n: Shaped[np.ndarray, " k"]) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """Mean and variance of the largest of n independent standard normals."""
    E, weights = top_quantiles()
    g, weight = torch.as_tensor(scipy.special.ndtri_exp(-E / n[:, None])), torch.as_tensor(weights)
    mean = g @ weight
    return mean, (g - mean[:, None]).square() @ weight


class Largest(NamedTuple):
    """The key of largest score among n, whose value v is hardmax attention, against the key y* of the support's top."""

    square: Float[Tensor, "m k"]
    """E‖v − V y*‖²."""
    bias_square: Float[Tensor, "m k"]
    """‖E v − V y*‖²."""
    gap: Float[Tensor, "m k"]
    """E(top score of the support − top score of n keys)."""
    top: Float[Tensor, " m"]
    """The largest score of the support."""
    method: str


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


def largest_of_atoms(
    atoms: Atoms, limit: Float[Tensor, "m p"], slack: Float[Tensor, " m"], sizes: Sequence[int]
) -> Largest:
    """For keys that are atoms: a score level of mass p, of mass F with all below it, is the top of n keys with
    probability Fⁿ − (F − p)ⁿ. Neighbours within `slack` of each other (rounding) tie."""
    atoms, m = atoms.double(), len(limit)
    mean, spread = atoms.mean.expand(m, -1, -1), atoms.spread.expand(m, -1)
    n = torch.tensor(sizes, dtype=torch.float64)
    each = [
        Levels.of(atoms.scores[i], atoms.log_mass[i].exp(), mean[i], spread[i], float(slack[i]))
        for i in range(m)
    ]
    rows = [finite_top(levels, limit[i].double(), n) for i, levels in enumerate(each)]
    square, bias, gap = (torch.stack(parts) for parts in zip(*rows, strict=True))
    top = torch.stack([levels.score[0] for levels in each])
    return Largest(square, bias, gap, top, "exact (score levels, keys drawn with replacement)")


def trimmed(atoms: Atoms, n_least: int, n_most: int) -> Atoms:
    """Without the keys that no more than e^{−700} of the samples of n_least are led by, nor come near those that lead."""
    scores, order = atoms.scores.sort(dim=1, descending=True)
    mass = atoms.log_mass.gather(1, order).exp().cumsum(1)
    led = (mass < NEVER / n_least).sum(1, keepdim=True).clamp_max(scores.shape[1] - 1)
    least = scores.gather(1, led) - LIGHT - np.log(n_most)
    check_width(float((scores[:, :1] - least.maximum(scores[:, -1:])).max()), n_least)
    return atoms._replace(log_mass=atoms.log_mass.masked_fill(atoms.scores < least, -torch.inf))


def check_width(width: float, n: int) -> None:
    """Refuses scores that spread too far for the quadrature."""
    if not width <= WIDEST:
        raise TooSharp(
            f"κ spreads the scores that matter to n = {n} keys over {width:.3g}, more than the {WIDEST:g} that the "
            "quadrature takes: softmax is nearly hardmax there. Use hardmax_error, a smaller κ, or more keys."
        )
