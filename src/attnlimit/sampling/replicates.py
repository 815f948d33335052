"""One replicate of an experiment: keys drawn, queries, and their outputs at every n."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.measures import Empirical
from attnlimit.sampling.nested import choose_queries, nested_outputs
from attnlimit.sampling.setup import Setup


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
    for n, places in zip(setup.n, draw.places(len(others), setup.n, generator), strict=True):
        drawn, own = others[places], draw.weigh(len(others), n, places)
        count = len(drawn) if own is None else n
        many = len(others) / count if setup.sampling.weight == "rest" else 1.0
        added = math.log(many) if own is None else math.log(many) + own.to(scores).log()
        weights = torch.cat([scores[always], scores[drawn] + added]).softmax(0)
        means.append(weights @ setup.population.values[torch.cat([always, drawn])])
    return means
