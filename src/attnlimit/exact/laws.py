"""Score atoms of token laws whose projection on a direction is known: the law of (aᵀy, V y)."""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import NotKnown
from attnlimit.measures import Empirical, FromSampler, Gaussian, Measure, Mixture, Rademacher
from attnlimit.measures.product import Bounded
from attnlimit.measures.sphere import Radial
from attnlimit.numerics.atoms import Atoms, join

RESOLUTION = 0.4
"""Largest gap between neighbouring scores: e^{−t e^z} is analytic in |Im z| < π/2, so the rule is good to 1e-8."""


@singledispatch
def project(law: Measure, a: Tensor, head: Head) -> Atoms:
    """Atoms of (aᵀy, V y) for score vectors a (m, d); `limit` is the head's."""
    return _unknown(law)


def _unknown(law: Measure) -> Atoms:
    raise NotKnown(
        f"{law!r} has no projected form in these directions, so its finite-n error is not exact here. "
        "Use measure_convergence (Monte Carlo), or a large sample as a population: law.sample(n, generator=…)."
    )


@project.register
def _(law: Empirical, a: Tensor, head: Head) -> Atoms:
    """Every token an atom: exact, at a cost linear in tokens times quadrature points."""
    values = head.read_linear(law.values)
    log_mass = law.probabilities.log().expand(len(a), -1)
    mean = values[None]
    return Atoms(a @ law.tokens.T, log_mass, mean, mean.new_zeros(1, len(law)), _limit(law, a, head))


@project.register
def _(law: Gaussian, a: Tensor, head: Head) -> Atoms:
    """z = aᵀm + s g with g ~ N(0, 1), s² = aᵀΣa; given g, V y has mean V(m + Σa g/s) and the rest of the trace."""
    along = law.apply_cov(a)
    s = (a * along).sum(-1).clamp_min(0).sqrt()
    step = RESOLUTION / max(1.0, float(s.max()))
    g = torch.arange(*_reach(float(s.min())), step, dtype=a.dtype, device=a.device)
    log_mass = -0.5 * g.square() - 0.5 * math.log(2 * math.pi) + math.log(step)
    slope = head.read_linear(along / s.clamp_min(1e-300)[:, None]) * (s > 0)[:, None]
    centre = head.read_linear(law.mean)
    scores = (a @ law.mean)[:, None] + s[:, None] * g
    spread = (_trace(law, head) - slope.square().sum(-1)).clamp_min(0)
    return Atoms(
        scores,
        log_mass.expand_as(scores),
        centre + slope[:, None, :] * g[None, :, None],
        spread[:, None].expand_as(scores),
        _limit(law, a, head),
        smooth=max(1.0, 0.12 * float(s.min())),  # n ≤ 10^12 keys: φⁿ varies on the scale s/√(2 log n)
    )


@project.register
def _(law: Radial, a: Tensor, head: Head) -> Atoms:
    """z = R‖a‖c with c of density ∝ (1 − c²)^{(k−3)/2}, k = d on the sphere and d + 2 in the ball; given c, V y has
    mean R c V â and the rest of V y has variance R²(1 − c²)/(k − 1) in each direction orthogonal to a."""
    norm = a.norm(dim=-1)
    c, log_mass = _heights(law.order, law.radius * float(norm.max()), a)
    anywhere = torch.eye(1, law.dim, dtype=a.dtype, device=a.device)  # a = 0 has no direction: any will do
    unit = torch.where(norm[:, None] > 0, a / norm.clamp_min(1e-300)[:, None], anywhere)
    slope = head.read_linear(law.radius * unit)
    across = (law.radius**2 * head.V.square().sum() - slope.square().sum(-1)).clamp_min(0)
    spread = across[:, None] * (1 - c.square()) / max(1, law.order - 1)
    scores = law.radius * norm[:, None] * c
    mean = slope[:, None, :] * c[None, :, None]
    return Atoms(scores, log_mass.expand_as(scores), mean, spread, _limit(law, a, head))


@project.register
def _(law: Bounded, a: Tensor, head: Head) -> Atoms:
    """Along a coordinate axis only: that coordinate is a sphere's height, the others keep their variance."""
    loud = a.abs() > 1e-12 * a.abs().amax(-1, keepdim=True)
    if int(loud.sum(-1).max()) > 1:
        return _corners(law, a, head) if isinstance(law, Rademacher) else _unknown(law)
    axis = a.abs().argmax(-1)
    value = a.gather(-1, axis[:, None])[:, 0]
    c, log_mass = _heights(law.order, law.scale * float(value.abs().max()), a)
    columns = law.scale * head.V.T[axis]
    rest = (law.scale**2 * head.V.square().sum() - columns.square().sum(-1)) / law.order
    scores = law.scale * value[:, None] * c
    mean = columns[:, None, :] * c[None, :, None]
    return Atoms(
        scores, log_mass.expand_as(scores), mean, rest[:, None].expand_as(scores), _limit(law, a, head)
    )


@project.register
def _(law: FromSampler, a: Tensor, head: Head) -> Atoms:
    return _unknown(law)


@project.register
def _(law: Mixture, a: Tensor, head: Head) -> Atoms:
    parts = []
    for weight, part in zip(law.weights, law.parts, strict=True):
        if float(weight) > 0:
            atoms = project(part, a, head)
            parts.append(atoms._replace(log_mass=atoms.log_mass + weight.log()))
    return join(parts, _limit(law, a, head))


def _limit(law: Measure, a: Tensor, head: Head) -> Tensor:
    return head.read_linear(law.tilted_mean(a))


def _trace(law: Gaussian, head: Head) -> Tensor:
    """tr VΣVᵀ."""
    V = head.factors.V
    if V is None:
        return law.cov.diagonal().sum() if law.cov.ndim == 2 else law.cov.expand(law.dim).sum()
    return (law.apply_root(V)).square().sum()


def _reach(s: float) -> tuple[float, float]:
    """Standard deviations that matter: weights e^{2sg} reach to 2s + 7 while n ≤ 10^12 keys get there at all, which
    they do up to 10 (mass 1e-23 beyond); when scores spread widely, keys below −6.5 (mass 4e-11) weigh nothing."""
    return (-9.0, 12.0) if s < 4 else (-6.5, 10.0)


def _heights(order: int, concentration: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and log masses of the height c of a uniform point on the unit sphere of R^order.

    With c = tanh x the density becomes ∝ sech^{order−1} x on the line, where the trapezoid rule converges
    geometrically; order 1 is the two points ±1.
    """
    if order == 1:
        return torch.tensor([-1.0, 1.0]).to(like), torch.full((2,), -math.log(2.0)).to(like)
    power = order - 1
    reach = math.acosh(math.exp(min(700.0, 45.0 / power)))  # sech^power falls to e^−45
    step = min(RESOLUTION / max(1.0, concentration), reach / 40, 0.25)
    x = torch.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1).to(like) * step
    log_mass = -power * (x.abs() + torch.log1p(torch.exp(-2 * x.abs())))
    return torch.tanh(x), log_mass - torch.logsumexp(log_mass, 0)


def _corners(law: Rademacher, a: Tensor, head: Head) -> Atoms:
    """All sign patterns of the coordinates that matter, the quiet ones left to the spread."""
    loud = (a != 0).any(0)
    count = int(loud.sum())
    if count > 12:
        return _unknown(law)
    patterns = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * count).to(a).reshape(-1, count)
    V = head.V
    mean = patterns @ V.T[loud]
    spread = V[:, ~loud].square().sum().expand(1, len(patterns))
    scores = a[:, loud] @ patterns.T
    return Atoms(
        scores, torch.full_like(scores, -count * math.log(2.0)), mean[None], spread, _limit(law, a, head)
    )
