"""Moments of any order of what two queries read from the same n keys.

A sum over keys of (tw)^a (t′w′)^b f has independent terms under the tilted law e^{−tw−t′w′}/φ. A product of such sums is thus a sum over
the ways to part its factors into r blocks, each block with a key of its own, and by 1/W^k = ∫ t^{k−1}e^{−tW} dt/(k−1)!

    E Π_f (Σ w^a w′^b f) / (W^k W′^l) = ∫∫ Σ_parts n(n−1)…(n−r+1) φ^{n−r} Π_blocks E[(tw)^Σa (t′w′)^Σb Πf e^{−tw−t′w′}] dt dt′ / (t t′),

with k and l the powers of w and w′ in all, both 1 or 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.numerics.two_queries import PairAtoms, tilted_pair

Factors = tuple[str, ...]
"""Each one of these sums, in alphabetical order: p0 and p1 are Σ w u, q0 and q1 are Σ w′u′; P = Σ w², Q = Σ w′², X = Σ ww′."""
POWERS = {"p": (1, 0), "q": (0, 1), "P": (2, 0), "Q": (0, 2), "X": (1, 1)}
Form = tuple[Float[Tensor, "..."], str, str]
"""Coefficients, the sums p and q that their indices are of, and sums without index."""
MOST = 4
"""Factors."""


def pair_sums(atoms: PairAtoms, forms: Sequence[Form], n: Sequence[int], step: float) -> Float[Tensor, " n"]:
    """E Σ_terms c Π(factors)/(W^k W′^l) for each n, over independent keys."""
    y, seen, y2, seen2, log_phi = tilted_pair(atoms, n, step)
    plan = _plan(tuple((indexed, sums) for _, indexed, sums in forms))
    numbers = torch.cat([one.flatten() for one, _, _ in forms])
    weights, others = [y**a * seen for a in range(3)], [y2**b * seen2 for b in range(3)]
    moments = _moments(atoms, weights, others, plan.blocks).flatten(1)
    fields = [
        (share @ numbers) @ torch.stack([moments[place] for place in places.T]).prod(0)
        for places, share in plan.parted
    ]
    sizes, r = torch.tensor(n, dtype=torch.float64)[:, None], torch.arange(MOST)
    ways, left = (sizes - r).cumprod(1), (sizes - r - 1).clamp_min(0)
    kept = torch.exp(left[..., None] * log_phi.flatten())
    return step**2 * torch.einsum("nr,nrx,rx->n", ways, kept, torch.stack(fields))


@dataclass(frozen=True, eq=False)
class _Plan:
    """How the terms of some forms part into blocks, whatever their coefficients."""

    blocks: tuple[Factors, ...]
    parted: list[tuple[Int[Tensor, "_ _"], Float[Tensor, "_ numbers"]]]
    """Into r = 1, 2, … blocks: which ones, (terms, r), and how much of each coefficient."""


@cache
def _plan(forms: tuple[tuple[str, str], ...]) -> _Plan:
    terms = [
        tuple(sorted([*(f"{one}{i}" for one, i in zip(indexed, place, strict=True)), *sums]))
        for indexed, sums in forms
        for place in product(range(2), repeat=len(indexed))
    ]
    found: dict[tuple[Factors, ...], Tensor] = defaultdict(lambda: torch.zeros(len(terms), dtype=torch.float64))  # fmt: skip
    for at, factors in enumerate(terms):
        for blocks in _parted(factors):
            found[tuple(sorted(blocks))][at] += 1
    every = tuple(sorted({block for blocks in found for block in blocks}))
    parted = []
    for r in range(1, MOST + 1):
        some = [blocks for blocks in found if len(blocks) == r]
        places = torch.tensor([[every.index(block) for block in blocks] for blocks in some], dtype=torch.long)
        share = torch.stack([found[blocks] for blocks in some]) if some else torch.zeros(0, len(terms), dtype=torch.float64)  # fmt: skip
        parted.append((places.reshape(-1, r), share))
    return _Plan(every, parted)


def _moments(
    atoms: PairAtoms, weights: list[Tensor], others: list[Tensor], blocks: Sequence[Factors]
) -> Float[Tensor, "blocks t s"]:
    """E[(tw)^a (t′w′)^b Πf e^{−tw−t′w′}] of each block: those of the same powers a and b at once.
    `weights` and `others` are those powers times e^{−tw}, (t, i), and e^{−t′w′}, (s, i, k)."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, block in enumerate(blocks):
        a, b = (sum(powers) for powers in zip(*(POWERS[one[0]] for one in block), strict=True))
        groups[a, b].append(at)
    sides = {f"{name}{i}": side[..., i] for name, side in (("p", atoms.error), ("q", atoms.other_error)) for i in range(2)}  # fmt: skip
    values: dict[Factors, Tensor] = {(): torch.ones_like(atoms.mass)}
    found = weights[0].new_empty(len(blocks), len(weights[0]), len(others[0]))
    for (a, b), some in groups.items():
        here = [_product(values, sides, tuple(one for one in blocks[at] if one in sides)) for at in some]
        inner = torch.einsum("sik,mik->ism", others[b], torch.stack(here))
        found[some] = torch.einsum("ti,ism->mts", weights[a], inner)
    return found


def _product(known: dict[Factors, Tensor], sides: dict[str, Tensor], factors: Factors) -> Tensor:
    if factors not in known:
        known[factors] = _product(known, sides, factors[:-1]) * sides[factors[-1]]
    return known[factors]


def _parted(factors: Factors) -> Iterator[list[Factors]]:
    """All ways to part the factors into blocks."""
    if not factors:
        yield []
        return
    first, rest = factors[:1], factors[1:]
    for blocks in _parted(rest):
        yield [first, *blocks]
        for at, block in enumerate(blocks):
            yield [*blocks[:at], first + block, *blocks[at + 1 :]]
