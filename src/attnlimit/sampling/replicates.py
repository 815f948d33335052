"""One replicate of an experiment: keys drawn, queries, and their outputs at every n, by attention over growing sets of keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.measures import Empirical
from attnlimit.numerics.softmax import Partial, attend, merge
from attnlimit.sampling.statistic import Setup


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


class Sample(NamedTuple):
    """Outputs at one n. The average over the queries has variance `rest` times their sample variance: 1/m
    for m independent ones, (1 − m/n)/m for m of the n tokens, 0 when there are no others."""

    outputs: Float[Tensor, "m dv"]
    limits: Float[Tensor, "m dv"]
    rest: float
    all_limits: Float[Tensor, "n dv"] | None = None
    """Γ at all n tokens, for self-attention."""
    known: int = 0
    """How many of `all_limits` (the first ones) were the whole of the previous sample's."""
    tokens: Float[Tensor, "n d"] | None = None
    """All n tokens, for self-attention."""
    queries: Float[Tensor, "m d"] | None = None
    """Those of them that are queries, for self-attention."""


class Keys(NamedTuple):
    """Keys in an order such that the first sizes[j] are those for the j-th of some n."""

    measure: Empirical
    sizes: list[int]
    where: Tensor | None
    """Their positions in the population, where there is one."""


def replicate(setup: Setup, generator: torch.Generator, all_limits: bool = False) -> Iterator[Sample]:
    """One Sample for every n of the setup; with `all_limits` it holds Γ at all n tokens (self-attention)."""
    if setup.sampling.kept:
        yield from _beside_kept(setup, generator)
        return
    x = None if setup.self_attention else _fresh_queries(setup, generator)
    limits = None if x is None else setup.limit(x)
    rest = 0.0 if setup.queries is not None else 1 / setup.m
    for keys in draw_keys(setup, generator):
        if x is None or limits is None:
            yield from _own_queries(setup, keys, generator, all_limits)
        else:
            for outputs in nested_outputs(setup.head, keys.measure, keys.sizes, x):
                yield Sample(outputs, limits, rest)


def draw_keys(setup: Setup, generator: torch.Generator) -> list[Keys]:
    """The keys for all n at once when the policy nests them, else for each n apart."""
    tokens = setup.law.population
    if tokens is None or tokens.weights is not None:
        return [Keys(setup.law.sample(setup.n[-1], generator=generator), list(setup.n), None)]
    draw = setup.sampling.draw
    sets = draw.places(len(tokens), setup.n, generator)
    if not draw.nested:
        weights = [draw.weigh(len(tokens), n, index) for n, index in zip(setup.n, sets, strict=True)]
        return [
            Keys(tokens.select(index, weight), [len(index)], index)
            for index, weight in zip(sets, weights, strict=True)
        ]
    return [Keys(tokens.select(sets[-1]), [len(index) for index in sets], sets[-1])]


def _fresh_queries(setup: Setup, generator: torch.Generator) -> Tensor:
    if setup.queries is not None:
        return setup.queries
    return setup.head.checked(setup.law.sample(setup.m, generator=generator).tokens)


def _own_queries(setup: Setup, keys: Keys, generator: torch.Generator, all_limits: bool) -> Iterator[Sample]:
    """Self-attention: m of the tokens are queries, chosen for each n."""
    everything = _limits(setup, keys) if all_limits else None
    chosen = choose_queries(keys.sizes, setup.m, generator)
    x = setup.head.checked(keys.measure.tokens[chosen.tokens])
    limits = setup.limit(x) if everything is None else everything[chosen.tokens]
    outputs = nested_outputs(setup.head, keys.measure, keys.sizes, x, chosen.counts)
    known = 0
    for size, rows, out in zip(keys.sizes, chosen.rows, outputs, strict=True):
        rest = (1 - len(rows) / size) / len(rows)
        known_limits = None if everything is None else everything[:size]
        tokens = keys.measure.tokens[:size]
        yield Sample(out[rows], limits[rows], rest, known_limits, known, tokens, x[rows])
        known = size


def _limits(setup: Setup, keys: Keys) -> Tensor:
    if keys.where is not None:
        return setup.population_limits[keys.where]
    return setup.limits(keys.measure.tokens)


def _beside_kept(setup: Setup, generator: torch.Generator) -> Iterator[Sample]:
    """Every query has keys of its own: those it keeps, and n drawn from its others."""
    law, sampling = setup.population, setup.sampling
    positions, x = setup.positions, setup.queries
    if x is None:
        positions = torch.randint(len(law), (setup.m,), generator=generator, device=generator.device)
        x = setup.head.checked(law.tokens[positions])
    scores = setup.head.query(x) @ setup.head.keys(law.tokens).T
    kept = sampling.kept.mask(scores, positions)
    rows = [_read(setup, row, own, generator) for row, own in zip(scores, kept, strict=True)]
    limits, rest = setup.limit(x), 0.0 if setup.queries is not None else 1 / setup.m
    for means in zip(*rows, strict=True):
        yield Sample(setup.head.read(torch.stack(means)), limits, rest)


def _read(
    setup: Setup, scores: Float[Tensor, " N"], kept: Tensor, generator: torch.Generator
) -> list[Float[Tensor, " dv"]]:
    """The average value that one query reads, at every n."""
    always, others = kept.nonzero()[:, 0], (~kept).nonzero()[:, 0]
    means = []
    draw = setup.sampling.draw
    sets = draw.places(len(others), setup.n, generator)
    rest, sizes = (torch.tensor([one], dtype=torch.float64) for one in ([len(others)], setup.n))
    many = setup.sampling.stands_for(rest, sizes)[0].log().tolist()
    for n, places, added in zip(setup.n, sets, many, strict=True):
        drawn, own = others[places], draw.weigh(len(others), n, places)
        log_weight = added if own is None else added + own.to(scores).log()
        weights = torch.cat([scores[always], scores[drawn] + log_weight]).softmax(0)
        means.append(weights @ setup.population.values[torch.cat([always, drawn])])
    return means
