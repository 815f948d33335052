"""What is measured of the error, and in which setup: a statistic, and its experiment, which gives a row of errors for each replicate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.attention import AttentionMap, Head, LinearHead
from attnlimit.designs import Independent, Sampling
from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_count, as_counts, as_float, as_places
from attnlimit.measures import Empirical, Measure

MANY = 256
_MOST_OWN = 100_000
"""Queries that each draw keys of their own, in one replicate: some ten seconds."""


@dataclass(frozen=True)
class Fresh:
    """So many queries, drawn from the law in each replicate (Γ_{μ_n}#μ)."""

    count: int = MANY

    def __post_init__(self) -> None:
        as_count(self.count, "queries")


@dataclass(frozen=True)
class Own(Fresh):
    """Self-attention: the n tokens are the queries, each among its own keys (Γ_{μ_n}#μ_n); so many of them are
    evaluated for each n."""


@dataclass(frozen=True, eq=False)
class Given:
    """These queries, (m, d), and where they stand among the keys of a population, if that matters."""

    x: Array
    positions: Sequence[int] | Tensor | None = None

    def __post_init__(self) -> None:
        x = as_float(self.x, "queries")
        if self.positions is not None:
            as_places(self.positions, x.shape[:-1].numel(), 2**63, x.device)


Queries: TypeAlias = Array | int | Fresh | Given | None


@dataclass(frozen=True, eq=False)
class Setup:
    """What is drawn in a replicate. Queries are given (a tensor), or `m` of them are drawn: from the n tokens
    themselves when `self_attention`, else from the law."""

    head: Head
    law: Measure
    n: tuple[int, ...]
    sampling: Sampling
    m: int
    self_attention: bool
    queries: Float[Tensor, "m dq"] | None = None
    positions: Int[Tensor, " m"] | None = None

    @cached_property
    def limit(self) -> AttentionMap:
        return self.head(self.law)

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor] | None:
        return self.limit.affine()

    def limits(self, x: Float[Tensor, "n dq"]) -> Float[Tensor, "n dv"]:
        """Γ at many queries that need no checks: one product when Γ is affine."""
        return self.limit(x) if self._affine is None else torch.addmm(self._affine[1], x, self._affine[0].T)

    @property
    def population(self) -> Empirical:
        if self.law.population is None:
            raise TypeError(f"{self.law!r} is not a population.")
        return self.law.population

    @cached_property
    def population_limits(self) -> Float[Tensor, "N dv"]:
        """Γ at every token of the population, each of which is met many times."""
        return self.limit(self.population.tokens)


def set_up(head: Head, law: Measure, n: object, sampling: Sampling, queries: Queries) -> Setup:
    """Every part checked against the others."""
    if head.heads:
        raise InputError(f"measure_convergence takes one head at a time, got {head!r}: see head.each().")
    if isinstance(head, LinearHead):
        raise InputError(
            "measure_convergence is for softmax attention; a linear head's error is that of an average."
        )
    head.check_fits(law)
    sizes = tuple(sorted(set(as_counts(n))))
    _check_sampling(sampling, law, sizes[-1])
    asked = Fresh() if queries is None else Fresh(queries) if isinstance(queries, int) else queries
    own = isinstance(asked, Own)
    if own and sampling.kept:
        raise InputError(
            f"With Own() queries the n tokens read each other: no others are kept, got {sampling}."
        )
    if isinstance(asked, Fresh):
        _check_count(asked.count, sampling)
        return Setup(head, law, sizes, sampling, asked.count, own)
    given = asked if isinstance(asked, Given) else Given(asked)
    x = head.checked(given.x)
    if x.ndim != 2 or len(x) == 0:
        raise InputError(
            f"queries must have shape (m, {head.query_dim}) or be a number, got {tuple(x.shape)}."
        )
    _check_count(len(x), sampling)
    return Setup(head, law, sizes, sampling, len(x), False, x, _positions(given, x, law, sampling))


def _check_count(m: int, sampling: Sampling) -> None:
    if sampling.kept and m > _MOST_OWN:
        raise InputError(
            f"queries must be at most {_MOST_OWN:,} a replicate where some keys are kept, since each then draws its own; got "
            f"{m:,}. Use more replicates, or exact_error."
        )


def _check_sampling(sampling: Sampling, law: Measure, largest: int) -> None:
    if sampling == Sampling():
        return
    tokens = law.population
    if tokens is None:
        raise InputError(
            f"{law!r} is a law with infinitely many keys, which are drawn independently and weigh alike: {sampling} is for "
            "populations (Empirical)."
        )
    if tokens.weights is not None:
        raise InputError(f"A weighted population takes independent plain keys, none kept; got {sampling}.")
    kept = sampling.kept
    left = len(tokens) - int(kept.own) - kept.sinks - kept.window - kept.around - kept.top
    if left < 1 or (largest > left and not sampling.draw.repeats):
        raise InputError(
            f"n = {largest} keys were asked for, but of {len(tokens)} keys {max(left, 0)} are left to draw from, and "
            f"{sampling.draw.words} do not repeat: use smaller n, or Independent()."
        )


def _positions(given: Given, x: Tensor, law: Measure, sampling: Sampling) -> Tensor | None:
    if given.positions is None:
        if sampling.kept.without(place=True) != sampling.kept:
            raise InputError(
                f"{sampling} needs to know where each query stands: Given(queries, positions), or a number of queries, and "
                "positions are drawn."
            )
        return None
    if law.population is None:
        raise InputError(
            f"positions are places among the keys of a population (Empirical), and {law!r} is a law."
        )
    return as_places(given.positions, len(x), len(law.population), x.device)


class Row(NamedTuple):
    """One replicate, an entry for each n: squared errors, errors where known, starts that agreed (supremum), and
    what is known to vary with the squared error and to have expectation 0."""

    squares: Float[Tensor, " n"]
    norms: Float[Tensor, " n"] | None
    agreed: Int[Tensor, " n"] | None = None
    control: Float[Tensor, " n"] | None = None


@dataclass(frozen=True)
class Statistic(ABC):
    """What is measured of attention's error. A new one is a subclass with its experiment, in a file of this folder."""

    name: ClassVar[str]

    @abstractmethod
    def experiment(self, setup: Setup) -> Experiment:
        """The experiment in this setup, or what is wrong with it there."""

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{value:g}" for value in asdict(self).values())])


@dataclass(frozen=True, eq=False)
class Experiment(ABC):
    """A statistic of attention's error in a setup."""

    setup: Setup

    @property
    def reference(self) -> str:
        """What the truth was, in words."""
        return self.setup.law.provenance

    @property
    @abstractmethod
    def method(self) -> str:
        """How a replicate is measured, in words."""

    @abstractmethod
    def row(self, generator: torch.Generator) -> Row:
        """One replicate."""

    def drawn(self) -> str:
        """How keys are drawn, in words."""
        sampling = self.setup.sampling
        nesting = "nested prefixes" if sampling.draw.nested else "drawn for each n apart"
        plain = isinstance(sampling.draw, Independent) and not sampling.kept
        return nesting if plain else f"{sampling}, {nesting}"
