"""The Laplace integral behind the exact finite-n error.

With n independent keys of weight w = e^z, u = v − Γ and φ(t) = E e^{−tw}, the identity 1/W² = ∫ t e^{−tW} dt gives

    E‖Γ_n − Γ‖² = ∫₀^∞ t { n E[w²‖u‖²e^{−tw}] φ^{n−1} + n(n−1) ‖E[w u e^{−tw}]‖² φ^{n−2} } dt,

and 1/W = ∫ e^{−tW} dt gives the bias. In τ = log t the integrand is analytic and dies double-exponentially, so the
trapezoid rule converges geometrically. All n share the inner expectations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.numerics.atoms import FINE, HEAVY, Atoms, KeptSet
from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.condensed import Condensed, as_they_are, summed
from attnlimit.numerics.fading import faded

STEP, FAST_START = FINE.step, FINE.start
WIDEST = 100_000
"""Of a grid in τ: with more there is nothing to see, and no memory for it."""
ENTRIES_AT_ONCE = 2**22
"""Never more than this many (τ, atom) pairs in memory."""
LIGHT, SPENT = 1e-4, 40.0
"""Where y = tw is below `LIGHT`, e^{−y} is 1 − y to 5e-9 and a product of sums over lighter keys; above `SPENT` it is 0 to 4e-18."""
WORTH_COMPILING = 2**24
"""From so many pairs on, numba repays the second that it takes to load."""
TAU_AT_ONCE = 96
"""Where queries are alike: those later on leave out more heavy keys."""


@dataclass(frozen=True, eq=False)
class Transforms:
    """The inner expectations on the τ-grid, each already multiplied by its power of t."""

    tau: Float[Tensor, "m t"]
    step: float
    log_phi: Float[Tensor, "m t"]
    """log E e^{−tw}."""
    first: Float[Tensor, "m t p"]
    """t E[w u e^{−tw}]."""
    second: Float[Tensor, "m t"]
    """t² E[w²‖u‖² e^{−tw}]."""
    kept: KeptSet | None = None

    def moments(
        self, n: Float[Tensor, "#m k"], kept_scale: Float[Tensor, "#m k"] | None = None
    ) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k p"]]:
        """E‖Γ_n − Γ‖² and E Γ_n − Γ for each n. `kept_scale` divides the kept weights (importance weighting)."""
        size = torch.linalg.vector_norm(self.first, dim=-1).square()
        if self.kept is None:
            return self._of_drawn(n, size)
        two = faded(self.log_phi[..., None] * (n - 2).clamp_min(0)[:, None, :])
        log_phi, g, n = self.log_phi[..., None], self.first, n[:, None, :]
        one = torch.where(n == 1, 1.0, two * log_phi.exp())
        square, slope = n * (n - 1) * two * size[..., None] + n * one * self.second[..., None], n * one
        scale = torch.ones_like(n) if kept_scale is None else kept_scale[:, None, :]
        log_weight = self.tau[..., None] + self.kept.log_weight[:, None, None] - scale.log()
        y = log_weight.clamp_max(HEAVY).exp()  # t W_S, per n
        damp = torch.exp(-y)
        error = self.kept.mean_error[:, None, :]
        cross = (error * g).sum(-1)[..., None]
        full = faded(n * log_phi)
        square = square + full * y.square() * error.square().sum(-1, keepdim=True) + 2 * slope * y * cross
        bias = (damp * slope).mT.to(g) @ g + (damp * full * y).sum(1)[..., None] * error
        return self.step * (damp * square).sum(1).clamp_min(0), self.step * bias

    def _of_drawn(self, n: Tensor, size: Float[Tensor, "m t"]) -> tuple[Tensor, Tensor]:
        """Nothing kept: sums over t of φ^{n−2} times what all n share, as products of matrices, in the precision of the values."""
        log_phi, second = (part.to(self.first) for part in (self.log_phi, self.second))
        phi = faded(log_phi)
        two = faded(log_phi[..., None] * (n - 2).clamp_min(0)[:, None, :].to(phi))
        pairs, own = (two.mT @ torch.stack([size, phi * second], -1)).double().unbind(-1)
        slope = (two.mul_(phi[..., None]).mT @ self.first).double()
        alone = n == 1  # φ^{n−1} is 1
        own = torch.where(alone, self.second.sum(1, keepdim=True), own)
        slope = torch.where(alone[..., None], self.first.sum(1)[:, None], slope)
        return self.step * n * ((n - 1) * pairs + own), self.step * n[..., None] * slope


def transforms(
    atoms: Atoms | Condensed, kept: KeptSet | None, n_max: int, *, late: bool = False
) -> Transforms:
    """The inner expectations of all queries, for every n from 1 to n_max."""
    tau = tau_grid(atoms, n_max, kept, late=late)
    alike = isinstance(atoms, Condensed) and atoms.alike
    shrink, first, second = _alike(tau, atoms) if alike else _by_blocks(tau, atoms)  # type: ignore[arg-type]
    log_phi = torch.log1p(shrink.clamp_min(-1.0)).clamp_min(-1e4)
    return Transforms(tau, atoms.step, log_phi, first, second, kept)


Sums = tuple[Tensor, Tensor, Tensor]
"""E (e^{−y} − 1), E y e^{−y} u and E y² e^{−y} ‖u‖², y = tw."""


def _by_blocks(tau: Float[Tensor, "m t"], atoms: Atoms | Condensed) -> Sums:
    """Some queries at a time."""
    rows = max(1, ENTRIES_AT_ONCE // (tau.shape[1] * atoms.scores.shape[1]))
    large = tau.numel() * atoms.scores.shape[1] >= WORTH_COMPILING
    sums = _compiled if large and tau.device.type == "cpu" and has_numba() else _plain
    parts = []
    for block in (slice(i, i + rows) for i in range(0, len(tau), rows)):
        keys, number = _numbers(atoms.of(block))
        shrink, first, second = sums(tau[block], keys)
        parts.append((shrink / number, first / number[..., None], second / number))
    shrink, first, second = (torch.cat(each) for each in zip(*parts, strict=True))
    return shrink, first, second


def _alike(tau: Float[Tensor, "m t"], keys: Condensed) -> Sums:
    """Products of one matrix (τ × keys) for all queries with their (keys × values), a stretch of τ at a time."""
    share = 1 / keys.number.sum(1, keepdim=True)
    shrink, second = torch.empty_like(tau), torch.empty_like(tau)
    first = keys.vector.new_empty(*tau.shape, keys.dim)
    for start in range(0, tau.shape[1], TAU_AT_ONCE):
        here = slice(start, start + TAU_AT_ONCE)
        seen = int((tau[0, start] + keys.scores[0] < math.log(SPENT)).sum())
        few = keys.lightest(seen)
        y = few.loads(tau[:, here])
        less = torch.expm1(-y)
        pull = (less + 1.0).mul_(y)
        # 1e-30 is far below what heavier keys add, and processors are slow with still smaller numbers
        pulled = pull.clamp_min(1e-30).to(keys.vector)
        shrink[:, here] = summed(less, few.number) - keys.number[:, seen:].sum(1, keepdim=True)
        first[:, here] = pulled @ few.vector
        second[:, here] = summed(pull.mul_(y), few.square)
    return shrink.mul_(share), first.mul_(share[..., None]), second.mul_(share)


def _numbers(atoms: Atoms | Condensed) -> tuple[Condensed, Float[Tensor, "m 1"]]:
    """Numbers of keys, and how many there are. The masses of atoms need not sum to 1: what is missing weighs nothing."""
    one = torch.ones_like(atoms.scores[:, :1])
    if isinstance(atoms, Atoms):
        return as_they_are(atoms, one), one
    return atoms, atoms.number.sum(1, keepdim=True)


def _plain(tau: Float[Tensor, "m t"], keys: Condensed) -> tuple[Tensor, Tensor, Tensor]:
    """Σ (e^{−y} − 1), Σ y e^{−y} u and Σ y² e^{−y} ‖u‖² over the keys, y = tw: products of matrices (τ × keys) and
    (keys × values)."""
    y = keys.loads(tau)
    shrink = torch.expm1(-y)
    pull = (shrink + 1.0).mul_(y)
    first, second = pull.to(keys.vector) @ keys.vector, pull.mul_(y).to(keys.square) @ keys.square[..., None]
    return (shrink @ keys.number[..., None])[..., 0], first, second[..., 0]


def _compiled(tau: Float[Tensor, "m t"], keys: Condensed) -> tuple[Tensor, Tensor, Tensor]:
    """The same in the order of the scores: only keys between `LIGHT` and `SPENT` are looked at one by one."""
    order = keys.scores.argsort(1)
    scores, number, square = (part.gather(1, order) for part in (keys.scores, keys.number, keys.square))
    vector = keys.vector.gather(1, order[..., None].expand_as(keys.vector))
    first = vector.new_zeros(*tau.shape, vector.shape[2])
    shrink, second = torch.empty_like(tau), torch.empty_like(tau)
    run_compiled(_add_up, len(tau), tau.contiguous(), scores, number, vector, square, shrink, first, second)
    return shrink, first, second


def _add_up(
    start: int,
    stop: int,
    tau: Any,
    scores: Any,
    number: Any,
    vector: Any,
    square: Any,
    shrink: Any,
    first: Any,
    second: Any,
) -> None:
    (keys, p), real = vector.shape[1:], vector.dtype.type
    # sums over all keys up to one, in units of its own weight: Σ w, Σ w² of numbers; Σ w u, Σ w² u; Σ w²‖u‖², Σ w³‖u‖²
    light, pulled = np.empty((keys, 4)), np.empty((keys, 2, p), vector.dtype)
    for i in range(start, stop):
        light[0, :2], light[0, 2:] = number[i, 0], square[i, 0]
        pulled[0, 0], pulled[0, 1] = vector[i, 0], vector[i, 0]
        for j in range(1, keys):
            fall = math.exp(scores[i, j - 1] - scores[i, j])
            light[j, 0] = light[j - 1, 0] * fall + number[i, j]
            light[j, 1] = light[j - 1, 1] * fall**2 + number[i, j]
            light[j, 2] = light[j - 1, 2] * fall**2 + square[i, j]
            light[j, 3] = light[j - 1, 3] * fall**3 + square[i, j]
            once, twice = real(fall), real(fall**2)
            for c in range(p):
                pulled[j, 0, c] = pulled[j - 1, 0, c] * once + vector[i, j, c]
                pulled[j, 1, c] = pulled[j - 1, 1, c] * twice + vector[i, j, c]
        # keys from `below` on are not light, from `above` on they are spent
        below, above, spent = keys, keys, 0.0
        for t in range(tau.shape[1]):
            while above > 0 and tau[i, t] + scores[i, above - 1] > math.log(SPENT):
                above -= 1
                spent += number[i, above]
            while below > 0 and tau[i, t] + scores[i, below - 1] > math.log(LIGHT):
                below -= 1
            lost, noise = -spent, 0.0
            if below > 0:
                y = math.exp(tau[i, t] + scores[i, below - 1])
                lost -= y * (light[below - 1, 0] - 0.5 * y * light[below - 1, 1])
                noise += y * y * (light[below - 1, 2] - y * light[below - 1, 3])
                once, twice = real(y), real(y * y)
                for c in range(p):
                    first[i, t, c] = once * pulled[below - 1, 0, c] - twice * pulled[below - 1, 1, c]
            for j in range(below, above):
                y = math.exp(tau[i, t] + scores[i, j])
                less = math.exp(-y)
                lost += number[i, j] * (less - 1.0)
                noise += square[i, j] * y * y * less
                pull = real(y * less)
                for c in range(p):
                    first[i, t, c] += pull * vector[i, j, c]
            shrink[i, t], second[i, t] = lost, noise


def tau_grid(
    atoms: Atoms | Condensed, n_max: int, kept: KeptSet | None, *, late: bool = False
) -> Float[Tensor, "m t"]:
    """τ from where n_max keys together, or the heaviest one that they are likely to have, still weigh nothing,
    t n E w ≪ 1 and t w ≪ 1, to where the lightest alone is too heavy, t w_min ≫ 1. `late`: what is integrated starts like t."""
    precise, (total, heaviest, lightest) = atoms.precision, atoms.reach(n_max)
    if kept is not None:
        total, late = torch.logaddexp(total, kept.log_weight), True
    margin = precise.late if late else precise.start
    low, high = -torch.maximum(total + margin, heaviest + precise.alone), -lightest + precise.end
    if isinstance(atoms, Condensed) and atoms.alike:
        first = atoms.scores[:, 0]  # the grid has the same points whatever n_max is, more or less of them
        low = ((low + first).amin() / atoms.step).floor() * atoms.step - first
    width = float((high - low).max())
    if not width <= WIDEST:
        raise InputError(
            f"The scores of a query spread over {width:.3g}, and the grid is made up to {WIDEST:,}: one key takes all the "
            "weight. Use a smaller A or κ, or hardmax_error for the limit."
        )
    count = math.ceil(width / atoms.step) + 1
    return low[:, None] + atoms.step * torch.arange(count, dtype=low.dtype, device=low.device)
