"""Which keys a query samples, among those that it sees and does not keep anyway (its rest, R keys).

Both ways give every single query n keys that are independent and uniform over its rest, the same one possibly several
times (or, without replacement, min(n, R) different ones): what the exact error describes. They differ in what queries
have in common:

- `Shared`: one random order of all keys. A query walks along it and takes the keys of its rest as it meets them; how
  many it takes, and how often each counts, is the pattern of n balls thrown into R boxes, from one list of n uniform
  numbers. Queries with the same rest take the same keys, others nearly: few keys are read in all.
- `PerQuery`: every query throws its own n balls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Rest:
    """The keys that m queries see and do not keep, and what all heads with the same rest need to know about it."""

    def __init__(self, mask: Bool[Tensor, "m keys"]) -> None:
        self.mask, self.count = mask, mask.sum(1)

    @cached_property
    def some(self) -> Bool[Tensor, " keys"]:
        """Keys in the rest of some query."""
        return self.mask.any(0)

    @cached_property
    def running(self) -> Int[Tensor, "m keys"]:
        return self.mask.cumsum(1)


@dataclass(frozen=True, eq=False)
class Drawn:
    """The sampled keys of m queries."""

    columns: Int[Tensor, "*m p"]
    """Places among the keys: (p,) for all queries, or (m, p) for each."""
    times: Float[Tensor, "m p"]
    """How often each query drew each; 0: not at all."""
    distinct: Int[Tensor, " m"]
    """How many different keys each query drew."""
    draws: Float[Tensor, " m"]
    """Σ times."""


Draw: TypeAlias = Callable[[Rest], Drawn]
"""For one head and text: takes the rest of one block of queries after another."""


class Shared:
    """One random order of the keys for all queries."""

    def __init__(self, keys: int, n: int, replacement: bool, generator: torch.Generator) -> None:
        self.order = torch.randperm(keys, generator=generator)
        self.replacement = replacement
        self.uniform = torch.rand(n, generator=generator, dtype=torch.float64).sort().values

    def __call__(self, rest: Rest) -> Drawn:
        sizes, row = rest.count.unique(return_inverse=True)
        pattern = self._pattern(sizes)[row]
        distinct = (pattern > 0).sum(1)
        order = self.order.to(rest.count.device)
        order = order[rest.some[order]]
        length = min(len(order), 2 * int(distinct.max()))
        while not bool((rest.mask[:, order[:length]].sum(1) >= distinct).all()):
            length *= 2
        columns = order[:length]
        met = rest.mask[:, columns]
        place = met.cumsum(1) - 1
        counted = met & (place < pattern.shape[1])
        times = pattern.gather(1, place.clamp(0, pattern.shape[1] - 1)).masked_fill(~counted, 0.0)
        return Drawn(columns, times, distinct, pattern.sum(1))

    def _pattern(self, sizes: Int[Tensor, " u"]) -> Float[Tensor, "u n"]:
        """How often the first, second, … key that a query meets counts, for each size of its rest."""
        n = len(self.uniform)
        if not self.replacement:
            return (torch.arange(n, device=sizes.device) < sizes[:, None]).double()
        box = _boxes(self.uniform.to(sizes.device)[None], sizes)  # sorted, as the uniforms are
        new = torch.ones_like(box, dtype=torch.bool)
        new[:, 1:] = box[:, 1:] != box[:, :-1]
        empty = torch.zeros(box.shape, dtype=torch.float64, device=box.device)
        pattern = empty.scatter_add(1, new.cumsum(1) - 1, torch.ones_like(empty))
        return pattern * (sizes[:, None] > 0)


class PerQuery:
    """Independent draws for every query."""

    def __init__(self, keys: int, n: int, replacement: bool, generator: torch.Generator) -> None:
        self.n, self.replacement, self.generator = (
            min(n, keys) if not replacement else n,
            replacement,
            generator,
        )

    def __call__(self, rest: Rest) -> Drawn:
        m, keys = rest.mask.shape
        count = rest.count
        wanted = self.n if self.replacement else keys
        uniform = torch.rand(m, wanted, generator=self.generator, dtype=torch.float64).to(count.device)
        if not self.replacement:
            best = uniform.masked_fill(~rest.mask, -1.0).topk(self.n, dim=1)
            times = (best.values >= 0).double()
            return Drawn(best.indices, times, times.sum(1).long(), times.sum(1))
        place = _boxes(uniform, count)
        columns = torch.searchsorted(rest.running, place + 1).clamp_max(keys - 1)
        times = (count > 0).double()[:, None].expand(m, self.n)
        different = place.sort(1).values.diff(dim=1).ne(0).sum(1) + 1
        return Drawn(columns, times, different * (count > 0), times.sum(1))


def _boxes(uniform: Float[Tensor, "#m n"], sizes: Int[Tensor, " m"]) -> Int[Tensor, "m n"]:
    """⌊u R⌋, a uniform place below R; the product of a u near 1 may round up to R itself."""
    last = (sizes - 1).clamp_min(0)[:, None]
    return torch.minimum((uniform * sizes[:, None]).long(), last)
