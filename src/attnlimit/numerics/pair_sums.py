"""Moments of any order of what two queries read from the same n keys.

A sum over keys of (tw)^a (t′w′)^b f has independent terms under the tilted law e^{−tw−t′w′}/φ. A product of such sums is thus a sum over
the ways to part its factors into r blocks, each block with a key of its own, and by 1/W^k = ∫ t^{k−1}e^{−tW} dt/(k−1)!

    E Π_f (Σ w^a w′^b f) / (W^k W′^l) = ∫∫ Σ_parts n(n−1)…(n−r+1) φ^{n−r} Π_blocks E[(tw)^Σa (t′w′)^Σb Πf e^{−tw−t′w′}] dt dt′ / (t t′),

with k and l the powers of w and w′ in all, both 1 or 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.two_queries import PairAtoms, tilted_pair

Factors = tuple[str, ...]
"""Each one of these sums, in alphabetical order: p0 and p1 are Σ w u, q0 and q1 are Σ w′u′; P = Σ w², Q = Σ w′², X = Σ ww′."""
POWERS = {"p": (1, 0), "q": (0, 1), "P": (2, 0), "Q": (0, 2), "X": (1, 1)}


def pair_sums(
    atoms: PairAtoms, terms: Mapping[Factors, float], n: Sequence[int], step: float
) -> Float[Tensor, " n"]:
    """E Σ_terms c Π(factors)/(W^k W′^l) for each n, over independent keys."""
    y, seen, y2, seen2, log_phi = tilted_pair(atoms, n, step)
    parted: dict[tuple[Factors, ...], float] = defaultdict(float)
    for factors, share in terms.items():
        for blocks in _partings(factors) if share else ():
            parted[blocks] += share
    weights, others = [y**a * seen for a in range(3)], [y2**b * seen2 for b in range(3)]
    moments = _moments(atoms, weights, others, {block for blocks in parted for block in blocks})
    fields = [torch.zeros_like(log_phi) for _ in range(4)]
    for blocks, share in parted.items():
        here = share * moments[blocks[0]]
        for block in blocks[1:]:
            here = here * moments[block]
        fields[len(blocks) - 1] += here
    found = torch.zeros(len(n), dtype=torch.float64)
    for at, size in enumerate(n):
        ways = 1.0
        for r, field in enumerate(fields[:size]):
            ways *= size - r
            found[at] += ways * (field * torch.exp((size - r - 1) * log_phi)).sum()
    return step**2 * found


def _moments(
    atoms: PairAtoms, weights: list[Tensor], others: list[Tensor], blocks: set[Factors]
) -> dict[Factors, Float[Tensor, "t s"]]:
    """E[(tw)^a (t′w′)^b Πf e^{−tw−t′w′}] of each block: those of the same powers a and b at once.
    `weights` and `others` are those powers times e^{−tw}, (t, i), and e^{−t′w′}, (s, i, k)."""
    groups: dict[tuple[int, int], list[Factors]] = defaultdict(list)
    for block in sorted(blocks):
        a, b = (sum(powers) for powers in zip(*(POWERS[one[0]] for one in block), strict=True))
        groups[a, b].append(block)
    sides = {"p": atoms.error, "q": atoms.other_error}
    found: dict[Factors, Tensor] = {}
    for (a, b), some in groups.items():
        values = torch.ones(*atoms.mass.shape, len(some), dtype=torch.float64)
        for at, block in enumerate(some):
            for one in block:
                if one[0] in sides:
                    values[..., at] *= sides[one[0]][..., int(one[1])]
        inner = torch.einsum("sik,ikm->ism", others[b], values)
        found.update(zip(some, torch.einsum("ti,ism->mts", weights[a], inner), strict=True))
    return found


@cache
def _partings(factors: Factors) -> tuple[tuple[Factors, ...], ...]:
    return tuple(tuple(sorted(blocks)) for blocks in _parted(factors))


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
