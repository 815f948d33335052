"""The height of a uniform point on a sphere: nodes, quantiles, and what n of them reach."""

from __future__ import annotations

import math

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.numerics.order import LIGHT, check_width, top_quantiles

RESOLUTION = 0.4
"""Largest gap between neighbouring scores: e^{−t e^z} is analytic in |Im z| < π/2, so the rule is good to 1e-8."""
SHARP = 50.0
"""Largest score above which a sphere's atoms are set around its top."""
UNSEEN, CERTAIN = 35.0, 40.0
"""Keys so rare that n of them hold one with probability e^{−35} are left out; and so are those lighter by e^{−50}/n
than a key that n keys have but for a probability of e^{−40}."""


def heights(
    order: int, concentration: float, like: Tensor, finer: float = 1.0
) -> tuple[Float[Tensor, " j"], Float[Tensor, " j"]]:
    """Nodes and log masses of the height c of a uniform point on the unit sphere of R^order, for scores up to
    `concentration`, that much `finer`.

    With c = tanh x the density becomes ∝ sech^{order−1} x on the line, where the trapezoid rule converges
    geometrically; order 1 is the two points ±1.
    """
    if order == 1:
        return like.new_tensor([-1.0, 1.0]), like.new_full((2,), -math.log(2.0))
    power = order - 1
    reach = math.acosh(math.exp(min(700.0, 45.0 / power)))  # sech^power falls to e^−45
    step = min(RESOLUTION / max(1.0, concentration), reach / 40, 0.25) / finer
    x = torch.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1).to(like) * step
    log_mass = -power * (x.abs() + torch.log1p(torch.exp(-2 * x.abs())))
    return torch.tanh(x), log_mass - torch.logsumexp(log_mass, 0)


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
    below = scipy.special.betaincinv(alpha, alpha, np.minimum(-np.expm1(-hazard), 0.5))
    above = 1 - scipy.special.betaincinv(alpha, alpha, np.minimum(np.exp(-hazard), 0.5))
    return np.where(hazard < math.log(2), below, above)


def caps(
    order: int, r: Float[Tensor, "m 1"], n_least: int, n_most: int
) -> tuple[Float[Tensor, "m j"], Float[Tensor, "m j"], Float[Tensor, "m j"]]:
    """h, 1 − h and log masses of h = (1 − c)/2 ~ Beta(α, α) around the top, for scores r c and n_least to n_most keys:
    the score below the top, ζ = 2r h, on a grid even in y,

        ζ = softplus(y) − softplus(y − 2r):

    geometric near both ends, where the density has powers, and even in between, where the softmax needs it.
    """
    alpha = (order - 1) / 2
    tails = np.array([np.exp(-UNSEEN) / n_most, CERTAIN / n_least, np.exp(-UNSEEN)])
    rare, certain, lowest = (float(value) for value in cap_quantile(order, tails))
    y_low = _inverse_softplus(2 * r * rare)
    lightest = 2 * r * certain + LIGHT + math.log(n_most)
    y_high = torch.minimum(lightest, 2 * r - _inverse_softplus(2 * r * lowest))
    check_width(float((y_high - y_low.clamp_min(0)).max()), n_least)
    step = min(RESOLUTION, 0.8 * float(r.min()) / order**0.5)
    count = int(((y_high - y_low).max() / step).ceil()) + 1
    y = y_low + step * torch.arange(count, dtype=torch.float64, device=r.device)
    h, rest = (_below(t, 2 * r) / (2 * r) for t in (y, 2 * r - y))
    log_mass = (alpha - 1) * (h.log() + rest.log()) - float(scipy.special.betaln(alpha, alpha))
    log_mass = log_mass + (torch.sigmoid(y) - torch.sigmoid(y - 2 * r)).log() - (2 * r).log() + math.log(step)
    return h, rest, torch.where((y <= y_high + step) & (h > 0) & (rest > 0), log_mass, -torch.inf)


def _below(y: Tensor, width: Tensor) -> Tensor:
    """softplus(y) − softplus(y − width), from 0 to width."""
    zero = torch.zeros_like(y)
    return torch.logaddexp(y, zero) - torch.logaddexp(y - width, zero)


def _inverse_softplus(value: Tensor) -> Tensor:
    """y with softplus(y) = value."""
    return value + torch.log(-torch.expm1(-value))
