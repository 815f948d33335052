"""A coin for every key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from attnlimit.designs.draw import (
    Draw,
    Moments,
    Rest,
    Terms,
    Ways,
    check_enough,
    in_blocks,
    log_sets,
    turned,
    uniform,
)
from attnlimit.inputs import Count, Rising
from attnlimit.numerics.atoms import HEAVY, KeptSet
from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.condensed import Condensed, condensed, summed
from attnlimit.numerics.fading import faded
from attnlimit.numerics.laplace import tau_grid

ROWS_AT_ONCE = 256
"""Of a product whose rows are not kept."""


@dataclass(frozen=True)
class Coins(Draw):
    """Each key independently with probability n/R, R their number, so about n of them (Bernoulli subsampling); all coins are thrown
    again when no key is drawn, since attention needs one."""

    name, words = "coins", "keys by coins"

    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        """How many keys from one uniform number for all n, given that there is one; which ones from one order."""
        from scipy.stats import binom  # slow to import

        check_enough(population, n)
        order = torch.randperm(population, generator=generator, device=generator.device)
        p = np.asarray(n) / population
        nobody = (1 - p) ** population
        drawn = binom.ppf(nobody + float(uniform(1, generator)) * (1 - nobody), population, p)
        return [order[: max(1, int(count))] for count in np.atleast_1d(drawn)]

    def exact(self, rest: Rest, n_max: int) -> Moments:
        return in_blocks(rest, lambda some: partial(coin_moments, some))

    def transform(self, terms: Terms, n: int, lam: Float[Tensor, " k"]) -> Complex[Tensor, " k"]:
        """(Π (1 − p + p e^{iλy_j}) − (1 − p)^R) / (1 − (1 − p)^R)."""
        p, many = n / terms.number, (terms.mass * terms.number).to(torch.complex128)
        nobody = (1 - p) ** terms.number
        return ((torch.log1p(p * turned(lam[:, None] * terms.y)) @ many).exp() - nobody) / (1 - nobody)

    def ways(self, mass: Float[Tensor, " j"], number: float, n: int) -> Ways:
        many, p = (mass * number).round()[:, None], n / number
        c = torch.arange(int(many.max()) + 1, dtype=mass.dtype, device=mass.device)
        there, absent = torch.tensor(p, dtype=mass.dtype), torch.tensor(1 - p, dtype=mass.dtype)
        log_ways = log_sets(many, c) + torch.xlogy(c, there) + torch.xlogy((many - c).clamp_min(0), absent)
        return Ways(log_ways.masked_fill(c > many, -torch.inf), None, math.log1p(-((1 - p) ** number)))


def coin_moments(
    rest: Rest, n: Float[Tensor, "#m k"], stands_for: Float[Tensor, "m k"]
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k q"]]:
    """With p = n/R, q_j = 1 − p + p e^{−tw_j}, r_j = p e^{−tw_j}/q_j and Φ = Π q_j over the R keys,

        E‖Γ_n − Γ‖² = ∫ t e^{−tW_S} Φ { ‖U_S + Σ r_j w_j u_j‖² + Σ (r_j − r_j²) w_j²‖u_j‖² } dt,

    and the bias is ∫ e^{−tW_S} Φ (U_S + Σ r_j w_j u_j) dt, less what no key at all adds to them, and over the probability
    1 − (1 − p)^R that there is one.
    """
    atoms, kept, number = rest[:3]
    p = (n / number).clamp_max(1.0).expand(len(number), -1)
    tau = tau_grid(atoms, int(number.max()), kept)
    sums = coin_sums(tau, condensed(atoms, number), p, kept)
    log_phi, pairs, step = sums.log_phi, sums.pairs() + sums.noise, atoms.step
    nobody = (number * torch.log1p(-p)).exp()
    none_square, bias = torch.zeros_like(pairs), n.new_zeros(*p.shape, atoms.dim)
    if kept is not None:
        own = sums.tau + kept.log_weight[:, None, None] - stands_for[..., None].log()
        own, size = own.clamp_max(HEAVY).exp(), kept.mean_error.square().sum(-1)[:, None, None]
        log_phi = log_phi - own
        pairs = pairs + 2 * own * sums.toward(kept.mean_error) + own.square() * size
        # taken off at each t, since kept keys lighter than all others are seen at larger t than these
        none = nobody[..., None] * (-own).exp()
        none_square = none * own.square() * size
        bias = step * ((faded(log_phi) - none) * own).sum(2)[..., None] * kept.mean_error[:, None]
    phi = faded(log_phi)
    square = step * (phi * pairs - none_square).sum(2)
    if not rest.square_only:
        bias = bias + step * (phi[..., None] * sums.drift()).sum(2)
    return square.clamp_min(0) / (1 - nobody), bias / (1 - nobody)[..., None]


class CoinSums(NamedTuple):
    """For each p, on its own stretch of τ."""

    tau: Float[Tensor, "m k t"]
    log_phi: Float[Tensor, "m k t"]
    noise: Float[Tensor, "m k t"]
    """Σ (r − r²)(tw)²‖u‖²."""
    pulled: Float[Tensor, "#m r j"]
    """r tw of each key, at all pairs (k, t) that count."""
    vector: Float[Tensor, "m j q"]
    rows: Int[Tensor, " r"]
    """Which pairs these are."""

    def drift(self) -> Float[Tensor, "m k t q"]:
        """Σ r tw u."""
        full = self.vector.new_zeros(*self.log_phi.flatten(1).shape, self.vector.shape[2])
        full[:, self.rows] = self.pulled.to(self.vector) @ self.vector
        return full.unflatten(1, self.log_phi.shape[1:])

    def pairs(self) -> Float[Tensor, "m k t"]:
        """‖Σ r tw u‖², some rows at a time; in float32 for keys that are binned by score, to 1e-6: at most all of them are drawn, so
        that it never need vanish to many digits."""
        vector = self.vector.float() if len(self.pulled) < len(self.vector) else self.vector
        parts = self.pulled.to(vector).split(ROWS_AT_ONCE, 1)
        norms = torch.cat([torch.linalg.vector_norm(part @ vector, dim=-1) for part in parts], 1)
        return self._filled(norms.double().square())

    def toward(self, error: Float[Tensor, "m q"]) -> Float[Tensor, "m k t"]:
        """Σ r tw u in a direction."""
        along = (self.vector.double() @ error[..., None])[..., 0]
        return self._filled(summed(self.pulled, along))

    def averaged(self, share: Float[Tensor, "m n k t"]) -> Float[Tensor, "m n q"]:
        """Σ share Σ r tw u."""
        each = share.flatten(2)[..., self.rows] @ self.pulled
        return (each.to(self.vector) @ self.vector).double()

    def _filled(self, found: Float[Tensor, "m r"]) -> Float[Tensor, "m k t"]:
        full = torch.zeros_like(self.log_phi).flatten(1)
        full[:, self.rows] = found
        return full.view_as(self.log_phi)


def coin_sums(
    tau: Float[Tensor, "m t"], atoms: Condensed, p: Float[Tensor, "#m k"], kept: KeptSet | None = None
) -> CoinSums:
    """τ from where all keys together, p times, weigh e^{−9} (with kept ones e^{−16}: their mean error does not vanish at t = 0) to
    where Φ ≤ e^{−p Σ(1 − e^{−tw})} is e^{−60}; e^{−5}, e^{−8} and e^{−24} for keys that are binned."""
    y = atoms.loads(tau)
    if len(p) == 1 < len(tau):
        p = p.expand(len(tau), -1)
    elif len(y) < len(p):
        y = y.expand(len(p), -1, -1)
    there, precise = atoms.scores.masked_fill(atoms.number == 0, -torch.inf), atoms.precision
    total = (p * (there.exp() * atoms.number).sum(1, keepdim=True)).clamp_min(1e-300).log()
    if kept is None:
        total = total + 0.75 * precise.start
    else:
        total = torch.logaddexp(total, kept.log_weight[:, None]) + 0.8 * precise.late
    step = float(tau[0, 1] - tau[0, 0])
    early = torch.maximum(total, there.amax(1, keepdim=True) + precise.alone)
    first = ((-early - tau[:, :1]) / step).floor()
    last = (-summed(torch.expm1(-y), atoms.number)[..., None] * p[:, None, :] <= precise.fade).sum(1)
    if len(y) < len(tau):
        first, last, p = first.amin(0, keepdim=True), last.amax(0, keepdim=True), p[:1]
    length = min(tau.shape[1], int((last - first).max()) + 1)
    first = first.clamp(0, tau.shape[1] - length).long()
    steps = torch.arange(length, device=tau.device)
    stretch = first[..., None] + steps  # (m or 1, k, t)
    rows = torch.arange(stretch[0].numel(), device=tau.device)
    if has_numba() and tau.device.type == "cpu" and len(y) > 1:
        q, pulled, noisy = (table.flatten(1, 2) for table in _compiled(y, stretch, p))
    else:
        if len(stretch) == 1:  # for larger p fewer τ count
            rows = rows[(steps <= (last - first)[0, :, None]).flatten()]
        chance = p[..., None].expand_as(stretch).flatten(1)[:, rows]
        q, pulled, noisy = _plain(y, stretch.flatten(1)[:, rows], chance)
    log_phi = atoms.number.new_full((len(tau), stretch[0].numel()), -torch.inf)
    log_phi[:, rows] = summed(q.log_(), atoms.number)
    log_phi = log_phi.unflatten(1, stretch.shape[1:])
    here = tau.gather(1, stretch.flatten(1).expand(len(tau), -1)).view_as(log_phi)
    sums = CoinSums(here, log_phi, torch.zeros_like(log_phi), pulled, atoms.vector, rows)
    return sums._replace(noise=sums._filled(summed(noisy, atoms.square)))


def _compiled(y: Tensor, stretch: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, r y and (r − r²) y² of each key."""
    tables = [torch.empty(*stretch.shape, y.shape[2], dtype=torch.float64) for _ in range(3)]
    inputs = (part.contiguous() for part in (y, (-y).exp(), stretch[..., 0], p))
    run_compiled(_accumulate, len(y), *inputs, *tables)
    return tables[0], tables[1], tables[2]


def _accumulate(
    start: int, stop: int, y: Any, seen: Any, first: Any, p: Any, q: Any, pulled: Any, noisy: Any
) -> None:
    keys = y.shape[2]
    for i in range(start, stop):
        for k in range(p.shape[1]):
            chance = p[i, k]
            for t in range(q.shape[2]):
                at, own = y[i, first[i, k] + t], seen[i, first[i, k] + t]
                left, pull, noise = q[i, k, t], pulled[i, k, t], noisy[i, k, t]
                for j in range(keys):
                    drawn = chance * own[j]
                    left[j] = 1.0 - chance + drawn
                    r = drawn / left[j]
                    pull[j] = r * at[j]
                    noise[j] = (1.0 - r) * at[j] * pull[j]


def _plain(y: Tensor, place: Int[Tensor, "#m r"], p: Float[Tensor, "#m r"]) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch, at some τ."""
    y, p = y.gather(1, place[..., None].expand(-1, -1, y.shape[2])), p[..., None]
    drawn = p * (-y).exp()
    q = 1 - p + drawn
    r = drawn.div_(q)
    pulled = r * y
    return q, pulled, (1 - r) * y * pulled
