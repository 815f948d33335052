"""Score atoms around the top of the support, for attention that is nearly hardmax."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import betaln
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError
from attnlimit.exact.laws import project
from attnlimit.exact.order import cap_quantile
from attnlimit.measures import Measure
from attnlimit.measures.sphere import Radial
from attnlimit.numerics.atoms import Atoms

SHARP = 50.0
"""Scores R‖a‖ above which a sphere's atoms are set around its top."""
STEP = 0.4
"""Gap between neighbouring scores, see laws.RESOLUTION."""
UNSEEN, CERTAIN, LIGHT = 35.0, 40.0, 50.0
"""Keys so rare that n of them hold one with probability e^{−35} are left out; and so are those lighter by e^{−50}/n
than a key that n keys have but for a probability of e^{−40}."""
NEVER = 700.0
"""With finitely many keys the error falls exponentially in n, so only what underflows is left out."""
WIDEST = 4000.0
"""Scores that matter may spread this far; beyond, the grids are too long and the largest nearly takes all."""


class TooSharp(InputError):
    """κ is too large for these n keys: softmax is nearly hardmax."""


def top_atoms(head: Head, law: Measure, a: Float[Tensor, "m d"], n_least: int, n_most: int) -> Atoms:
    """Atoms of (aᵀy, V y − V y*) with `limit` zero, so that errors are distances from the hardmax limit; good
    for n from n_least to n_most."""
    if isinstance(law, Radial) and law.order > 1 and law.radius * float(a.norm(dim=-1).min()) > SHARP:
        return _cap(head, law, a, n_least, n_most)
    atoms = project(law, a, head).double()
    top = head.read_linear(law.top(a)).double()
    atoms = atoms._replace(mean=atoms.mean - top[:, None, :], limit=torch.zeros_like(top))
    return _trimmed(atoms, n_least, n_most)


def _cap(head: Head, law: Radial, a: Tensor, n_least: int, n_most: int) -> Atoms:
    """The score below the top, ζ = 2r h with r = R‖a‖ and h ~ Beta(α, α), on a grid even in y,

        ζ = softplus(y) − softplus(y − 2r):

    geometric near both ends, where the density has powers, and even in between, where the softmax needs it.
    """
    a, V, alpha = a.double(), head.V.double(), (law.order - 1) / 2
    norm = a.norm(dim=-1, keepdim=True)
    r = law.radius * norm
    tails = np.array([np.exp(-UNSEEN) / n_most, CERTAIN / n_least])
    rare, certain = (float(value) for value in cap_quantile(law.order, tails))
    y_low = _inverse_softplus(2 * r * rare)
    lightest = 2 * r * certain + LIGHT + np.log(n_most)
    y_high = torch.minimum(lightest, 2 * r - _inverse_softplus(2 * r * cap_low(law.order)))
    _check_width(float((y_high - y_low.clamp_min(0)).max()), n_least)
    step = min(STEP, 0.8 * float(r.min()) / law.order**0.5)
    count = int(((y_high - y_low).max() / step).ceil()) + 1
    y = y_low + step * torch.arange(count, dtype=torch.float64, device=a.device)
    h, rest = (_below(t, 2 * r) / (2 * r) for t in (y, 2 * r - y))
    log_mass = (alpha - 1) * (h.log() + rest.log()) - betaln(alpha, alpha)
    log_mass = log_mass + (torch.sigmoid(y) - torch.sigmoid(y - 2 * r)).log() - (2 * r).log() + np.log(step)
    log_mass = torch.where((y <= y_high + step) & (h > 0) & (rest > 0), log_mass, -torch.inf)
    slope = law.radius * (a / norm) @ V.T
    across = (law.radius**2 * V.square().sum() - slope.square().sum(-1)).clamp_min(0)
    spread = across[:, None] * 4 * h * rest / (law.order - 1)
    return Atoms(-2 * r * h, log_mass, -2 * h[..., None] * slope[:, None, :], spread, torch.zeros_like(slope))


def cap_low(order: int) -> float:
    """h so small that its tail e^{−35} does not count even for one key."""
    return float(cap_quantile(order, np.array(np.exp(-UNSEEN))))


def _below(y: Tensor, width: Tensor) -> Tensor:
    """softplus(y) − softplus(y − width), from 0 to width."""
    zero = torch.zeros_like(y)
    return torch.logaddexp(y, zero) - torch.logaddexp(y - width, zero)


def _inverse_softplus(value: Tensor) -> Tensor:
    """y with softplus(y) = value."""
    return value + torch.log(-torch.expm1(-value))


def _trimmed(atoms: Atoms, n_least: int, n_most: int) -> Atoms:
    """Without the keys that no more than e^{−700} of the samples of n_least are led by, nor come near those that lead."""
    scores, order = atoms.scores.sort(dim=1, descending=True)
    mass = atoms.log_mass.gather(1, order).exp().cumsum(1)
    led = (mass < NEVER / n_least).sum(1, keepdim=True).clamp_max(scores.shape[1] - 1)
    least = scores.gather(1, led) - LIGHT - np.log(n_most)
    _check_width(float((scores[:, :1] - least.maximum(scores[:, -1:])).max()), n_least)
    return atoms._replace(log_mass=atoms.log_mass.masked_fill(atoms.scores < least, -torch.inf))


def _check_width(width: float, n: int) -> None:
    if width > WIDEST:
        raise TooSharp(
            f"κ spreads the scores that matter to n = {n} keys over {width:.3g}, more than the {WIDEST:g} that the "
            "quadrature takes: softmax is nearly hardmax there. Use hardmax_error, a smaller κ, or more keys."
        )
