"""Attention over growing sets of keys, for queries that are needed only up to some size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.measures import Empirical
from attnlimit.numerics.softmax import Partial, attend, merge


def nested_outputs(
    head: Head,
    keys: Empirical,
    sizes: Sequence[int],
    queries: Float[Tensor, "m dq"],
    counts: Sequence[int] | None = None,
) -> Iterator[Float[Tensor, "count dv"]]:
    """head(first sizes[j] keys)(queries[:counts[j]]) for every j, in one pass over the keys.

    `sizes` does not decrease and `counts` (all queries unless given) does not increase: a query is scored
    against a key once, and not at all beyond the last size it is needed for.
    """
    q, k = head.query(queries), head.keys(keys.tokens[: sizes[-1]])
    log_weights = keys.log_weights
    state: Partial | None = None
    seen = 0
    for size, count in zip(sizes, counts or [len(q)] * len(sizes), strict=True):
        if state is not None:
            state = Partial(state.mean[:count], state.lse[:count])
        if size > seen:
            part = attend(
                q[:count],
                k[seen:size],
                keys.values[seen:size],
                None if log_weights is None else log_weights[seen:size],
            )
            state = part if state is None else merge(state, part)
            seen = size
        if state is None:
            raise ValueError("nested_outputs: the first size must be at least 1.")
        yield head.read(state.mean)


class Chosen(NamedTuple):
    """Queries chosen among the first sizes[j] tokens, for every j."""

    tokens: Int[Tensor, " u"]
    """All tokens chosen for some j, those needed longest first."""
    counts: list[int]
    """How many of them (the leading ones) are still needed at j."""
    rows: list[Int[Tensor, " m"]]
    """Which of them are the choice for j."""


def choose_queries(sizes: Sequence[int], m: int, generator: torch.Generator) -> Chosen:
    """m of the first sizes[j] tokens for every j (all of them when m ≥ sizes[j]), uniformly at random.

    The choice keeps the m tokens of least random rank, as reservoir sampling does: every set of m has the
    same probability at each j, and few tokens are replaced from one j to the next.
    """
    device = generator.device
    rank = torch.rand(sizes[-1], generator=generator, dtype=torch.float64, device=device)
    last = torch.full((sizes[-1],), -1, device=device)
    chosen: list[Tensor] = []
    best = torch.empty(0, dtype=torch.long, device=device)
    seen = 0
    for j, size in enumerate(sizes):
        candidates = torch.cat([best, torch.arange(seen, size, device=device)])
        best = candidates[rank[candidates].topk(min(m, size), largest=False).indices]
        last[best] = j
        chosen.append(best)
        seen = size
    used = (last >= 0).nonzero().flatten()
    used = used[last[used].argsort(descending=True, stable=True)]
    row = torch.empty_like(last)
    row[used] = torch.arange(len(used), device=device)
    counts = [int((last[used] >= j).sum()) for j in range(len(sizes))]
    return Chosen(used, counts, [row[best] for best in chosen])
