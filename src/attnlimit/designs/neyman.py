"""Different keys of every stratum, more where keys differ more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.designs.draw import Draw, Moments, Rest, check_enough, uniform
from attnlimit.errors import InputError
from attnlimit.inputs import Count, Rising
from attnlimit.numerics.atoms import HEAVY
from attnlimit.numerics.laplace import tau_grid


@dataclass(frozen=True)
class Neyman(Draw):
    """n_h different keys of stratum h, n_h ∝ N_h S_h (at least one, at most all N_h), each weighing N_h/n_h times.

    `strata` is the stratum of each key, 0, 1, … (None: one for all, as `Different`), `spread` S_h, how far apart the keys of
    each are in what they add to the output. Not nested. `neyman_strata` makes both of scores.
    """

    strata: tuple[int, ...] | None = None
    spread: tuple[float, ...] = (1.0,)
    name, words, nested = "neyman", "different keys of every stratum", False

    def __post_init__(self) -> None:
        strata = None if self.strata is None else tuple(self.strata)
        object.__setattr__(self, "strata", strata)
        object.__setattr__(self, "spread", tuple(float(one) for one in self.spread))
        known = set(strata or (0,)) <= set(range(len(self.spread)))
        if not (known and all(0 <= one < math.inf for one in self.spread)):
            raise InputError(
                f"spread must be a finite number of at least 0 for each stratum 0, 1, …; got {self.spread!r} for strata "
                f"{sorted(set(strata or (0,)))[:6]}."
            )

    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        check_enough(population, n)
        strata = self._strata(population).to(generator.device)
        everything = torch.arange(population, device=generator.device)
        found = []
        for size in n:
            drawn = []
            for h, many in enumerate(self._shares(strata, size)):
                inside = everything[strata == h]
                drawn.append(inside[uniform(len(inside), generator).argsort()[:many]])
            found.append(torch.cat(drawn))
        return found

    def weigh(self, population: int, n: int, places: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
        strata = self._strata(population).to(places.device)
        return self._factors(strata, n)[strata[places]]

    def exact(self, rest: Rest, n_max: int) -> Moments:
        """Strata are independent, so that ∫ t e^{−tW_S} Σ_J Π e_j ‖U_S + Σ_J w u‖² dt, as for different keys, is built of each one's sums."""
        strata = self._strata(rest.atoms.scores.shape[1]).to(rest.number.device)
        rest.key_by_key("Strata")

        def moments(n: Tensor, stands_for: Tensor) -> tuple[Tensor, Tensor]:
            n = n.expand_as(stands_for)
            squares = torch.zeros_like(stands_for)
            bias = squares[..., None].expand(*squares.shape, rest.atoms.dim).clone()
            for i, k in torch.ones_like(n).nonzero().tolist():
                row = rest.of(torch.arange(len(n), device=n.device) == i)
                squares[i, k], bias[i, k] = self._at(row, strata, int(n[i, k]), stands_for[i, k])
            return squares, bias

        return moments

    def _at(self, rest: Rest, strata: Tensor, n: int, stands_for: Tensor) -> tuple[Tensor, Tensor]:
        """At one query and n."""
        atoms, kept = rest.key_by_key("Strata"), rest.kept
        there = atoms.log_mass[0] > -torch.inf
        strata = strata[there]
        if n >= len(strata):
            return atoms.limit.new_zeros(()), torch.zeros_like(atoms.limit[0])
        scores = atoms.scores[:, there] + self._factors(strata, n)[strata].log()
        error = (atoms.mean[0] - atoms.limit)[there]
        atoms = atoms._replace(scores=scores, log_mass=atoms.log_mass[:, there])
        tau = tau_grid(atoms, len(strata), kept, late=True)
        y = (tau[0, :, None] + scores).clamp_max(HEAVY).exp()
        square = error.square().sum(-1) + atoms.spread[0].expand(len(there))[there]
        total = (
            tau.new_ones(tau.shape[1]),
            tau.new_zeros(tau.shape[1]),
            error.new_zeros(len(y), error.shape[-1]),
        )
        if kept is not None:
            own = (tau[0] + kept.log_weight - stands_for.log()).clamp_max(HEAVY).exp()
            vector = own[:, None] * kept.mean_error
            seen = torch.exp(-own)
            total = seen, seen * vector.square().sum(-1), seen[:, None] * vector
        for h, many in enumerate(self._shares(strata, n)):
            inside = strata == h
            if many:
                total = _joined(total, _sets(y[:, inside], error[inside], square[inside], many))
        step = atoms.step
        return step * total[1].sum(), step * total[2].sum(0)

    def _shares(self, strata: Int[Tensor, " j"], n: int) -> list[int]:
        """n_h: one each, then one at a time to where the variance N_h²S_h²/n_h falls most by it, n in all."""
        number = torch.bincount(strata, minlength=len(self.spread)).tolist()
        shares = [min(1, many) for many in number]
        if n < sum(shares):
            raise InputError(
                f"n = {n} keys do not reach {sum(shares)} strata: use larger n, or fewer strata."
            )
        for _ in range(min(n, len(strata)) - sum(shares)):
            gain = [
                (many * (spread + 1e-9 * max(self.spread) + 1e-300)) ** 2 / (share * (share + 1))
                if share < many
                else -1.0
                for many, spread, share in zip(number, self.spread, shares, strict=True)
            ]
            shares[gain.index(max(gain))] += 1
        return shares

    def _factors(self, strata: Int[Tensor, " j"], n: int) -> Float[Tensor, " h"]:
        """What a key of each stratum weighs, N_h/n_h, beside the R/n of all."""
        number = torch.bincount(strata, minlength=len(self.spread)).double()
        shares = torch.tensor(self._shares(strata, n), dtype=torch.float64, device=strata.device)
        return number / shares.clamp_min(1) * (min(n, len(strata)) / len(strata))

    def _strata(self, population: int) -> Int[Tensor, " j"]:
        if self.strata is None:
            return torch.zeros(population, dtype=torch.long)
        if len(self.strata) != population:
            raise InputError(
                f"strata are of {len(self.strata)} keys, but {population} are drawn from: give one for each key (Monte Carlo "
                "beside kept keys takes no strata)."
            )
        return torch.tensor(self.strata)


def neyman_strata(
    scores: Float[Tensor, " j"], parts: Float[Tensor, " j p"], count: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """`strata` and `spread` for Neyman: keys by rank of score in `count` strata of equal number, S_h the standard deviation in
    each of what the keys have a part in, w_j(v_j − Γ) where that is known."""
    strata = scores.argsort().argsort() * count // len(scores)
    spread = [float(parts[strata == h].var(0, correction=0).sum().sqrt()) for h in range(count)]
    return tuple(strata.tolist()), tuple(spread)


Sums = tuple[Tensor, Tensor, Tensor]
"""E Π e, E Π e ‖Σ wu‖² and E Π e Σ wu over the sets of keys that are drawn, at each t."""


def _sets(
    y: Float[Tensor, "t j"], error: Float[Tensor, "j p"], square: Float[Tensor, " j"], many: int
) -> Sums:
    """Means over all sets of `many` of the keys: with key m, the k-sets of the first m keys hold it with probability k/m."""
    size = torch.arange(1, many + 1, dtype=y.dtype, device=y.device)
    one, pairs = y.new_zeros(len(y), many + 1), y.new_zeros(len(y), many + 1)
    vectors = y.new_zeros(len(y), many + 1, error.shape[-1])
    one[:, 0] = 1.0
    for j in range(len(error)):
        holds = (size / (j + 1)).clamp_max(1.0)
        e = torch.exp(-y[:, j, None]) * holds
        value = y[:, j, None] * error[j]
        cross = (vectors[:, :-1] * value[:, None]).sum(-1)
        own = y[:, j, None].square() * square[j]
        new_pairs = e * (pairs[:, :-1] + 2 * cross + own * one[:, :-1])
        new_vectors = e[..., None] * (vectors[:, :-1] + value[:, None] * one[:, :-1, None])
        new_one = e * one[:, :-1]
        one[:, 1:] = (1 - holds) * one[:, 1:] + new_one
        pairs[:, 1:] = (1 - holds) * pairs[:, 1:] + new_pairs
        vectors[:, 1:] = (1 - holds)[:, None] * vectors[:, 1:] + new_vectors
    return one[:, -1], pairs[:, -1], vectors[:, -1]


def _joined(left: Sums, right: Sums) -> Sums:
    """Of independent sets together."""
    pairs = left[1] * right[0] + 2 * (left[2] * right[2]).sum(-1) + left[0] * right[1]
    return left[0] * right[0], pairs, left[2] * right[0][:, None] + left[0][:, None] * right[2]
