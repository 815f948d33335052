"""n different keys of a small population: exact, all sets, sampled, and beside other ways of drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat
from scipy.stats import poisson
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.designs import Coins, Different, Sampling
from attnlimit.designs.draw import Draw
from attnlimit.errors import InputError
from attnlimit.exact import exact_error
from attnlimit.measures import Empirical
from attnlimit.studies.fields import Seed, Sizes
from attnlimit.studies.kind import Cells, Folder, Kind, Result, Row, crossed, table

MOST_SETS = 20_000
"""That are gone through one by one."""


@dataclass(frozen=True, eq=False)
class DifferentErrors(Result):
    """Root mean square errors at each n, and the squared errors of sampled sets."""

    columns = table("replicate:int n:int square")
    by_replicate = ("squares",)

    n: tuple[int, ...]
    exact: Float[Tensor, " n"]
    enumerated: Float[Tensor, " n"] | None
    """Over all sets, one by one; None where they are too many."""
    independent: Float[Tensor, " n"]
    coins: Float[Tensor, " n"]
    product: Float[Tensor, " n"]
    """(f g/h)^½: independent keys times coins over a Poisson number of independent keys, which is no formula but was taken for one."""
    squares: Float[Tensor, "replicates n"]

    def rows(self) -> Cells:
        return crossed([range(len(self.squares)), self.n], self.squares)

    def shown(self) -> list[Row]:
        return [{"largest n": self.n[-1], "rms at largest n": float(self.exact[-1])}]


class DifferentKeys(Kind):
    """A query on keys with random scores of that spread and random values; or on two heavy keys of value 1 and light ones of value
    0 whose scores are lower by the spread."""

    title = "different keys"
    result = DifferentErrors
    together = True
    tried = 2000

    population: Literal["random", "two_heavy"] = "random"
    keys: Annotated[int, Field(ge=2, le=4096)]
    spread: NonNegativeFloat = 2.0
    n: Sizes
    seed: Seed = 0

    def build(self) -> Empirical:
        if max(self.n) >= self.keys:
            raise InputError(f"n must be below the number of keys, {self.keys}, got {max(self.n)}.")
        if self.population == "two_heavy":
            values = (torch.arange(self.keys) < 2).double()
            return Empirical((values - 1)[:, None] * self.spread, values[:, None])
        generator = torch.Generator().manual_seed(self.seed)
        scores, values = torch.randn(2, self.keys, generator=generator, dtype=torch.float64)
        return Empirical(self.spread * scores[:, None], values[:, None])

    def check(self) -> object:
        return self.build()

    def run(self, replicates: int, seed: int, place: Folder) -> DifferentErrors:
        tokens = self.build()
        exact, coins = (_squares(tokens, self.n, draw) for draw in (Different(), Coins()))
        generator, squares = (
            torch.Generator().manual_seed(seed),
            torch.zeros(replicates, len(self.n)).double(),
        )
        weight, values = tokens.tokens[:, 0].softmax(0), tokens.values[:, 0]
        pairs = torch.stack([weight, weight * (values - weight @ values)], 1)
        for row in squares:
            drawn = (pairs[some].sum(0) for some in Different().places(self.keys, self.n, generator))
            total, error = torch.stack(list(drawn), 1)
            row += (error / total).square()
        few = max(math.comb(self.keys, n) for n in self.n) <= MOST_SETS
        sets = torch.stack([_mean_over_sets(tokens, n) for n in self.n]) if few else None
        independent = _squares(tokens, self.n)
        product = independent * coins * _somebody(self.n, self.keys) / _poisson(tokens, self.n)
        exact, independent, coins, product = (part.sqrt() for part in (exact, independent, coins, product))
        enumerated = None if sets is None else sets.sqrt()
        return DifferentErrors(tuple(self.n), exact, enumerated, independent, coins, product, squares)


def _squares(tokens: Empirical, n: Sequence[int], draw: Draw | None = None) -> Float[Tensor, " n"]:
    sampling = Sampling() if draw is None else Sampling(draw=draw)
    return exact_error(Head([[1.0]], [[1.0]]), tokens, n, [[1.0]], sampling=sampling).mean_square[0]


def _mean_over_sets(tokens: Empirical, n: int) -> Tensor:
    places = torch.tensor(list(combinations(range(len(tokens)), n)))
    weight, values = tokens.tokens[:, 0].softmax(0), tokens.values[:, 0]
    output = (weight * values)[places].sum(1) / weight[places].sum(1)
    return (output - weight @ values).square().mean()


def _somebody(n: Sequence[int], keys: int) -> Float[Tensor, " n"]:
    """The probability that coins draw any key: the product counts none as no error."""
    return 1 - (1 - torch.tensor(n).double() / keys) ** keys


def _poisson(tokens: Empirical, n: Sequence[int]) -> Float[Tensor, " n"]:
    """A Poisson number of independent keys."""
    most = int(max(n) + 12 * max(n) ** 0.5 + 20)
    each = _squares(tokens, range(1, most + 1))
    chance = torch.tensor(poisson.pmf(list(range(1, most + 1)), [[size] for size in n]))
    return chance @ each
