"""What n drawn keys make of a query's output in one direction: the probability that its error is at most t.

    eᵀ(Γ_n − Γ) ≤ t   ⟺   Σ w_i (u_i − t) ≤ 0 over kept and drawn keys,   u = eᵀ(v − Γ)

a sum whose characteristic function the way of drawing knows; see `numerics.inversion`. Where few outcomes are possible they are told
one by one, see `numerics.outcomes`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.designs.draw import Draw, Rest, Terms
from attnlimit.errors import InputError, NotKnown
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.inversion import Below, chance_below
from attnlimit.numerics.outcomes import MOST, outcomes

WIDEST = 600.0
"""Of log weights beside the heaviest likely one."""
MOST_ATOMS = 4096
"""Of which outcomes are told one by one."""
AT_ONCE = 2**20
"""Phases in memory."""
NODES = 1e-6
"""What nodes of a density leave."""
FALLEN = 1e-3
"""∣χ∣ below which it has gone, and what is larger later has come back."""
FAR = 1e30
"""In units of the largest error of a key: nothing is beyond."""
NEVER = 1e-14
"""The chance that one of n keys is among the rarest atoms, which are left out."""


@dataclass(frozen=True, eq=False)
class DrawnKeys:
    """What is drawn from and how, for one query and direction: errors u, weights w, their spread within an atom and mass."""

    rest: Rest
    draw: Draw
    n: int
    stands_for: float

    @cached_property
    def atoms(self) -> Atoms:
        return self.rest.key_by_key("Laws of the error")

    @cached_property
    def unit(self) -> float:
        """The largest error of a key: what errors are told in here, so that products with weights stay finite."""
        kept = self.rest.kept
        errors = (self.atoms.mean[0, :, 0] - self.atoms.limit[0, 0]).abs() + self.atoms.spread[0].clamp_min(
            0
        ).sqrt()
        return max(float(errors.max()), 0.0 if kept is None else float(kept.mean_error[0, 0].abs())) or 1.0

    @cached_property
    def error(self) -> Float[Tensor, " j"]:
        return (self.atoms.mean[0, :, 0] - self.atoms.limit[0, 0]).double() / self.unit

    @cached_property
    def log_weight(self) -> Float[Tensor, " j"]:
        """Relative to the heaviest key that n are likely to hold, or that is kept."""
        atoms = self.atoms
        if self.n == 1 and self.rest.kept is None and math.isinf(float(self.rest.number[0, 0])):
            return torch.zeros_like(atoms.scores[0])  # one key has all the weight, whatever it is
        scores, order = atoms.scores[0].sort(descending=True)
        likely = atoms.log_mass[0][order].logcumsumexp(0) >= -math.log(self.n)
        heavy = scores[int(likely.to(torch.int8).argmax())] if bool(likely.any()) else scores[-1]
        if self.rest.kept is not None:
            heavy = heavy.maximum(self.rest.kept.log_weight[0] - math.log(self.stands_for))
        found = atoms.scores[0] - heavy
        present = atoms.log_mass[0] > -math.log(self.n) - 28.0
        if float(found[present].abs().max()) > WIDEST:
            raise InputError(
                f"The scores of this query spread over {float(found[present].abs().max()):.0f}, and the law of the error is computed up "
                f"to {WIDEST:.0f}: one key takes all. Use a smaller A or κ."
            )
        return found.clamp(-WIDEST, WIDEST)

    @cached_property
    def kept(self) -> tuple[float, float]:
        """Weight of the kept keys beside a drawn one's, and their mean error."""
        kept = self.rest.kept
        if kept is None or float(kept.log_weight[0]) == -math.inf:
            return 0.0, 0.0
        shift = self.atoms.scores[0, 0] - self.log_weight[0]
        return (
            float((kept.log_weight[0] - shift).exp()) / self.stands_for,
            float(kept.mean_error[0, 0]) / self.unit,
        )

    def below(self, t: float) -> Below:
        """P(error ≤ t): Σ w(u − t) ≤ 0 over kept and drawn keys."""
        t = min(max(t / self.unit, -FAR), FAR)
        terms, always = self._terms(t), self.kept[0] * (self.kept[1] - t)

        def transform(lam: Tensor) -> Tensor:
            some = lam.split(max(1, AT_ONCE // len(terms.y)))
            chi = torch.cat([self.draw.transform(terms, self.n, one) for one in some])
            return chi * torch.polar(torch.ones_like(lam), lam * always)

        chance, error = chance_below(transform, self._start(terms, always))
        return Below(chance, error + (NODES if bool((terms.gap > 0).any()) else self.jump / 2))

    def _terms(self, t: float) -> Terms:
        atoms, weight, mass = self.atoms, self.log_weight.exp(), self.atoms.log_mass[0].exp()
        y, reach = weight * (self.error - t), weight * atoms.spread[0].clamp_min(0).sqrt() / self.unit
        if atoms.around is None and bool((reach > 0).any()):
            raise NotKnown(
                "How values spread around their mean given the score is not known of this law, and the law of the error needs it: use "
                "measure_convergence (Monte Carlo)."
            )
        gap = torch.zeros_like(y)
        if atoms.nodes is not None and bool(atoms.nodes.any()):
            turn, spread, step = (_slopes(part, atoms.parts) for part in (y, reach, self.log_weight))
            # what turns fast is left out also where neighbours' phases agree: where y turns round, and at edges
            gap = torch.where(atoms.nodes, (turn - spread).abs().maximum(y.abs() * step.max()), 0.0)
        if self.draw.repeats:
            ordered, order = mass.sort()
            mass[order[ordered.cumsum(0) * self.n < NEVER]] = 0.0
        return Terms(y, reach, mass, float(self.rest.number[0, 0]), atoms.around, gap)

    @cached_property
    def jump(self) -> float:
        """About the largest step of the distribution function that inversion makes smooth: where errors are nearly on a lattice of spacing
        2π/λ, χ goes long before it comes back at λ, which 512 keys tell."""
        terms = self._terms(0.0)
        every = max(1, len(terms.y) // 512)
        y, mass = terms.y[::every], terms.mass[::every] / terms.mass[::every].sum()
        drawn = self.n if self.draw.repeats else self.n * (1 - self.n / terms.number)
        spread = math.sqrt(max(1e-300, drawn * float(mass @ (y - mass @ y).square())))
        lam = torch.arange(8.0, 2000.0, 0.5, dtype=torch.float64) / spread
        early = lam[:200:4]
        low = (self.draw.transform(terms, self.n, early).abs() < FALLEN).nonzero()
        lam = lam[lam > early[low[0]]] if len(low) else lam  # what falls slowly does not come back
        one_key = torch.polar(mass.expand(len(lam), -1), lam[:, None] * y).sum(1).abs()
        likely = lam[(drawn * one_key.log() - lam.log()).argsort(descending=True)[:16]]
        size = self.draw.transform(terms, self.n, likely).abs()
        return float((math.sqrt(2 * math.pi) * size / (likely * spread)).max())

    def _start(self, terms: Terms, always: float) -> float:
        """λ below which nothing is seen: n E min(1, λ|y|) and λ|y_S| are 1e-10."""
        size, tau = (terms.y.abs() + terms.reach).log(), range(-700, 60, 2)

        def seen(one: int) -> float:
            return self.n * float((size + one).clamp_max(0.0).exp() @ terms.mass) + abs(always) * math.exp(
                one
            )

        return math.exp(tau[max(0, bisect_right(tau, 1e-10, key=seen) - 1)])

    def enumerated(self) -> tuple[Tensor, Tensor] | None:
        """All errors in order with their probabilities, where there are few and values do not spread."""
        log_weight = self.log_weight  # refuses scores that spread too widely
        atoms = self.atoms
        there = atoms.log_mass[0] > -torch.inf
        if (
            self.n > MOST
            or int(there.sum()) > MOST_ATOMS
            or bool((atoms.spread[0] > 0).any())
            or _dense(atoms.nodes)
        ):
            return None
        pairs = torch.stack([log_weight, self.error], 1)[there]
        pairs, place = pairs.unique(dim=0, return_inverse=True)
        mass = torch.zeros(len(pairs), dtype=pairs.dtype).index_add(0, place, atoms.log_mass[0][there].exp())
        weight, error = pairs[:, 0].exp(), pairs[:, 1]
        found = outcomes(
            torch.stack([weight, weight * error], 1),
            *self.draw.ways(mass, float(self.rest.number[0, 0]), self.n),
        )
        if found is None:
            return None
        always, kept_error = self.kept
        errors, order = ((found.sums[:, 1] + always * kept_error) / (found.sums[:, 0] + always)).sort()
        return self.unit * errors, found.log_chance[order].exp()


def _slopes(values: Float[Tensor, " j"], parts: tuple[int, ...] | None) -> Float[Tensor, " j"]:
    """How far neighbours differ; those of two parts of a mixture are no neighbours."""
    each = values.split(parts or len(values))
    return torch.cat(
        [torch.gradient(one)[0].abs() if len(one) > 1 else torch.zeros_like(one) for one in each]
    )


def _dense(nodes: Tensor | None) -> bool:
    return nodes is not None and bool(nodes.any())
