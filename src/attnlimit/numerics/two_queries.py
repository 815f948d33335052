"""The double Laplace integral behind the errors of two queries that read the same n keys.

With weights w, w′ of a key for the two queries, u = v − Γ, u′ = v − Γ′ and φ(t, t′) = E e^{−tw−t′w′}, the identity
1/(WW′) = ∫∫ e^{−tW−t′W′} dt dt′ gives

    E (Γ_n − Γ)(Γ′_n − Γ′)ᵀ = ∫∫ { n E[ww′ uu′ᵀ e^{−tw−t′w′}] φ^{n−1} + n(n−1) E[w u e^{−tw−t′w′}] E[w′u′ e^{−tw−t′w′}]ᵀ φ^{n−2} } dt dt′,

by the trapezoid rule in log t and log t′.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.numerics.atoms import HEAVY
from attnlimit.numerics.caps import RESOLUTION
from attnlimit.numerics.laplace import STEP

WIDEST = 4_000
"""Of a grid in τ, of which there are two."""
DIGITS = 20.0
"""e^{−20} = 2e-9 is how well integrals are to be known: also how much before log t = −log(n E w) the integrand, which starts like t,
is taken up. At twice the resolution it is e^{−10}."""


@dataclass(frozen=True, eq=False)
class PairAtoms:
    """Atoms (i, k) of the joint law of both scores and both errors; the first score is that of i alone."""

    scores: Float[Tensor, " i"]
    others: Float[Tensor, "i k"]
    mass: Float[Tensor, "i k"]
    error: Float[Tensor, "i k p"]
    """v − Γ."""
    other_error: Float[Tensor, "i k p"]
    """v − Γ′."""


def pair_moments(
    atoms: PairAtoms, n: Sequence[int], step: float = STEP
) -> tuple[Float[Tensor, "n p p"], Float[Tensor, " n"]]:
    """E (Γ_n − Γ)(Γ′_n − Γ′)ᵀ for each n, and E Σ ww′/(WW′): the same for an independent value of variance 1."""
    y, seen, y2, seen2, log_phi = tilted_pair(atoms, n, step)
    weight, weight2 = y * seen, y2 * seen2
    drift = torch.einsum("ti,sic->tsc", weight, torch.einsum("sik,ikc->sic", seen2, atoms.error))
    other = torch.einsum("ti,sic->tsc", seen, torch.einsum("sik,ikc->sic", weight2, atoms.other_error))
    covariance, alone = [], []
    for size in n:
        one = size * torch.exp((size - 1) * log_phi)
        each = torch.einsum("si,sik->ik", one.T @ weight, weight2)
        pairs = torch.einsum("ik,ikc,ikd->cd", each, atoms.error, atoms.other_error)
        if size > 1:
            two = size * (size - 1) * torch.exp((size - 2) * log_phi)
            pairs = pairs + torch.einsum("tsc,tsd->cd", two[..., None] * drift, other)
        covariance.append(step**2 * pairs)
        alone.append(step**2 * each.sum())
    return torch.stack(covariance), torch.stack(alone)


def tilted_pair(
    atoms: PairAtoms, n: Sequence[int], step: float
) -> tuple[
    Float[Tensor, "t i"], Float[Tensor, "t i"], Float[Tensor, "s i k"], Float[Tensor, "s i k"], Tensor
]:
    """On the grid of the integral: tw, e^{−tw}, t′w′, e^{−t′w′} times the masses, and log φ of (t, t′)."""
    tau = _grid(atoms.scores, atoms.mass.sum(1), n, step)
    y = (tau[:, None] + atoms.scores).clamp_max(HEAVY).exp()
    tau = _grid(atoms.others.flatten(), atoms.mass.flatten(), n, step)
    y2 = (tau[:, None, None] + atoms.others).clamp_max(HEAVY).exp()
    shrink, lost = torch.expm1(-y), torch.expm1(-y2) * atoms.mass
    inside = lost.sum(2)
    first = shrink @ atoms.mass.sum(1)
    phi = first[:, None] + inside.sum(1) + shrink @ inside.T
    return y, shrink + 1, y2, lost + atoms.mass, torch.log1p(phi.clamp_min(-1.0)).clamp_min(-1e4)


def gaussian_pair(
    s: float, s2: float, correlation: float, n_max: int, resolution: float = RESOLUTION
) -> PairAtoms:
    """Standard normal keys (g, h) with scores s g and s′(ρ g + √(1−ρ²) h), and the values (g, h) themselves."""
    step = resolution / max(1.0, s, s2)
    most = math.log(max(n_max, 2))
    far = math.sqrt(
        2 * (2 * most + DIGITS * RESOLUTION / resolution)
    )  # no key is there with probability e^{−DIGITS}/n
    reach = min(7.0 + s + s2, far)
    g = step * torch.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1, dtype=torch.float64)
    across = math.sqrt(max(0.0, 1 - correlation**2))
    log_mass = -0.5 * g.square() + math.log(step) - 0.5 * math.log(2 * math.pi)
    # scores along one line do not see h
    h, log_other = (g, log_mass) if across > 0 else (g.new_zeros(1), g.new_zeros(1))
    mass = (log_mass[:, None] + log_other).exp() * (g[:, None].square() + h.square() <= reach**2)
    others = s2 * (correlation * g[:, None] + across * h)
    keys = torch.stack(torch.broadcast_tensors(g[:, None], h), -1)
    limits = torch.tensor([[s, 0.0], [s2 * correlation, s2 * across]], dtype=torch.float64)
    return PairAtoms(s * g, others, mass, keys - limits[0], keys - limits[1])


def _grid(
    scores: Float[Tensor, " j"], mass: Float[Tensor, " j"], n: Sequence[int], step: float
) -> Float[Tensor, " t"]:
    """log t from where n keys weigh nothing to where φⁿ, or the lightest key alone, is too heavy."""
    total = torch.logsumexp(scores + mass.log(), 0) + math.log(max(n))
    low, high = float(-total) - DIGITS * STEP / step, 4.0 - float(scores[mass > 1e-13].min())
    if not high - low <= WIDEST:
        raise InputError(
            f"The scores of a query spread over {high - low:.3g}, and the grids of two queries are made up to {WIDEST:,}: one key "
            "takes all the weight. Use a smaller A or κ, or hardmax_error for the limit."
        )
    tau = torch.arange(low, high, step, dtype=torch.float64)
    ordered, order = scores.sort()
    above = torch.cat(
        [mass[order].flip(0).cumsum(0).flip(0), mass.new_zeros(1)]
    )  # mass of the scores from each on
    place = torch.searchsorted(ordered, -tau)  # t w > 1 from there on, so that 1 − φ ≥ (1 − 1/e) of that mass
    heavy = above[place] * (min(n) - 2) > 80.0
    return tau[: int(heavy.to(torch.int8).argmax()) + 1] if bool(heavy.any()) else tau
