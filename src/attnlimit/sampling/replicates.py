"""One replicate of an experiment: keys drawn by a policy, queries, and their outputs at every n."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.attention import AttentionMap, Head
from attnlimit.measures import Empirical, Measure
from attnlimit.sampling.nested import choose_queries, nested_outputs
from attnlimit.sampling.policies import SHARED, window


@dataclass(frozen=True, eq=False)
class Plan:
    """What is drawn in a replicate. Queries are given (a tensor), or `m` of them are drawn: from the n tokens
    themselves when `self_attention`, else from the law."""

    head: Head
    law: Measure
    n: tuple[int, ...]
    policy: str
    m: int
    self_attention: bool
    queries: Float[Tensor, "m dq"] | None = None
    positions: Int[Tensor, " m"] | None = None
    width: int | None = None

    @cached_property
    def limit(self) -> AttentionMap:
        return self.head(self.law)

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor] | None:
        return self.limit.affine()

    def limits(self, x: Float[Tensor, "n dq"]) -> Float[Tensor, "n dv"]:
        """Γ at many queries that need no checks: one product when Γ is affine."""
        return self.limit(x) if self._affine is None else torch.addmm(self._affine[1], x, self._affine[0].T)

    @cached_property
    def population_limits(self) -> Float[Tensor, "N dv"]:
        """Γ at every token of the population, each of which is met many times."""
        if not isinstance(self.law, Empirical):
            raise TypeError(f"{self.law!r} is not a population.")
        return self.limit(self.law.tokens)


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


def replicate(plan: Plan, generator: torch.Generator, all_limits: bool = False) -> Iterator[Sample]:
    """One Sample for every n of the plan; with `all_limits` it holds Γ at all n tokens (self-attention)."""
    if plan.policy == "window":
        yield from _windowed(plan, generator)
        return
    x = None if plan.self_attention else _fresh_queries(plan, generator)
    limits = None if x is None else plan.limit(x)
    rest = 0.0 if plan.queries is not None else 1 / plan.m
    for keys in draw_keys(plan, generator):
        if x is None or limits is None:
            yield from _own_queries(plan, keys, generator, all_limits)
        else:
            for outputs in nested_outputs(plan.head, keys.measure, keys.sizes, x):
                yield Sample(outputs, limits, rest)


def draw_keys(plan: Plan, generator: torch.Generator) -> list[Keys]:
    """The keys for all n at once when the policy nests them, else for each n apart."""
    if not isinstance(plan.law, Empirical) or plan.law.weights is not None:
        return [Keys(plan.law.sample(plan.n[-1], generator=generator), list(plan.n), None)]
    sets = SHARED[plan.policy](len(plan.law), plan.n, generator)
    if plan.policy == "stratified":
        return [Keys(plan.law.select(index), [len(index)], index) for index in sets]
    return [Keys(plan.law.select(sets[-1]), [len(index) for index in sets], sets[-1])]


def _fresh_queries(plan: Plan, generator: torch.Generator) -> Tensor:
    if plan.queries is not None:
        return plan.queries
    return plan.head.checked(plan.law.sample(plan.m, generator=generator).tokens)


def _own_queries(plan: Plan, keys: Keys, generator: torch.Generator, all_limits: bool) -> Iterator[Sample]:
    """Self-attention: m of the tokens are queries, chosen for each n."""
    everything = _limits(plan, keys) if all_limits else None
    chosen = choose_queries(keys.sizes, plan.m, generator)
    x = plan.head.checked(keys.measure.tokens[chosen.tokens])
    limits = plan.limit(x) if everything is None else everything[chosen.tokens]
    outputs = nested_outputs(plan.head, keys.measure, keys.sizes, x, chosen.counts)
    known = 0
    for size, rows, out in zip(keys.sizes, chosen.rows, outputs, strict=True):
        rest = (1 - len(rows) / size) / len(rows)
        known_limits = None if everything is None else everything[:size]
        tokens = keys.measure.tokens[:size]
        yield Sample(out[rows], limits[rows], rest, known_limits, known, tokens, x[rows])
        known = size


def _limits(plan: Plan, keys: Keys) -> Tensor:
    if keys.where is not None:
        return plan.population_limits[keys.where]
    return plan.limits(keys.measure.tokens)


def _windowed(plan: Plan, generator: torch.Generator) -> Iterator[Sample]:
    """Every query has keys of its own: those around its position, and random others."""
    if not isinstance(plan.law, Empirical) or plan.width is None:
        raise TypeError("A window needs a population and a width.")
    positions, x = plan.positions, plan.queries
    if positions is None:
        positions = torch.randint(len(plan.law), (plan.m,), generator=generator, device=generator.device)
    if x is None:
        x = plan.head.checked(plan.law.tokens[positions])
    order = window(len(plan.law), plan.n, generator, positions=positions, width=plan.width)
    per_query = [
        torch.cat(list(nested_outputs(plan.head, plan.law.select(row), plan.n, query[None])))
        for row, query in zip(order, x, strict=True)
    ]
    limits = plan.limit(x)
    for outputs in torch.stack(per_query, 1):
        yield Sample(outputs, limits, 0.0 if plan.queries is not None else 1 / plan.m)
