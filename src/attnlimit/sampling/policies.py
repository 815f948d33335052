"""Which n keys of a population of N are attended to: one small function a policy.

Each takes (population, n, generator) with `n` increasing, and returns the key positions for every n. Those
for smaller n come first in those for larger n (nested), save in `stratified`. `window` differs: its keys
depend on where the query stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

Policy: TypeAlias = Callable[[int, Sequence[int], torch.Generator], list[Tensor]]


def iid(population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Independent uniform keys: the same one may come twice."""
    order = torch.randint(population, (n[-1],), generator=generator, device=generator.device)
    return [order[:size] for size in n]


def without_replacement(population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """A uniformly random set of n distinct keys."""
    order = torch.randperm(population, generator=generator, device=generator.device)
    return [order[:size] for size in n]


def bernoulli(population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Each key independently with probability n/N, so about n of them.

    Attention needs a key: when none is kept, the one nearest to being kept is.
    """
    u = _uniform(population, generator)
    ordered, order = u.sort()
    kept = [int(torch.searchsorted(ordered, size / population)) for size in n]
    return [order[: max(1, count)] for count in kept]


def prefix(population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """The first n keys in the text's own order; nothing is random."""
    order = torch.arange(population, device=generator.device)
    return [order[:size] for size in n]


def block(population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """n neighbours, starting at a uniformly random place among the N − n + 1 possible.

    One uniform u serves all n, with start ⌊u(N − n + 1)⌋, so that a smaller block lies in a larger one.
    """
    u = _uniform(1, generator)
    starts = [min(int(u * (population - size + 1)), population - size) for size in n]
    everything = torch.arange(population, device=generator.device)
    order = everything[starts[0] : starts[0] + n[0]]
    blocks = [order]
    for (start, size), (wider, larger) in pairwise(zip(starts, n, strict=True)):
        before, after = everything[wider:start], everything[start + size : wider + larger]
        order = torch.cat([order, before, after])
        blocks.append(order)
    return blocks


def stratified(population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """One random key in each of n strata of neighbours, whose sizes differ by at most one. Not nested."""
    return [_one_per_stratum(population, size, generator) for size in n]


def window(
    population: int,
    n: Sequence[int],
    generator: torch.Generator,
    *,
    positions: Int[Tensor, " m"],
    width: int,
) -> Int[Tensor, "m n"]:
    """For a query at each position: the `width` keys around it (itself included), then random others.

    The first n columns are the keys for n. A window that would stick out of the text is shifted back in.
    """
    rows = []
    for position in positions.tolist():
        start = min(max(position - width // 2, 0), population - width)
        others = torch.randperm(population - width, generator=generator, device=generator.device)
        others = others[: n[-1] - width]
        near = torch.arange(start, start + width, device=generator.device)
        rows.append(torch.cat([near, others + width * (others >= start)]))
    return torch.stack(rows)


def _one_per_stratum(population: int, size: int, generator: torch.Generator) -> Tensor:
    edges = torch.arange(size + 1, device=generator.device) * population // size
    width = edges.diff()
    inside = (_uniform(size, generator) * width).long()
    return edges[:-1] + torch.minimum(inside, width - 1)


def _uniform(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)


SHARED: dict[str, Policy] = {
    "iid": iid,
    "without-replacement": without_replacement,
    "bernoulli": bernoulli,
    "prefix": prefix,
    "block": block,
    "stratified": stratified,
}
"""Policies whose keys all queries share."""

NAMES = (*SHARED, "window")
