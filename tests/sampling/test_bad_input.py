"""Every refusal of measure_convergence says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnlimit import Empirical, Gaussian, Head, InputError, LimitDoesNotExist, StudentT
from attnlimit.designs import Block, Different, Kept, Prefix, Sampling, Strata
from attnlimit.sampling import Given, Moment, Own, Sup, measure_convergence

EYE = torch.eye(2, dtype=torch.float64)
HEAD = Head(EYE)
LAW = Gaussian(cov=1.0, dim=2)
TOKENS = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
POPULATION = Empirical(TOKENS)
AROUND: dict[str, Any] = {"law": POPULATION, "sampling": Sampling(draw=Different(), kept=Kept(around=4))}
WEIGHTED = Empirical(TOKENS, weights=torch.full((30,), 1 / 30, dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statistic": "median"}, "statistic must be one of map, .* got 'median'"),
        ({"replicates": 1}, "replicates must be a whole number of at least 2, got 1: their spread"),
        ({"replicates": 0}, "replicates must be a whole number"),
        ({"n": []}, "n is empty"),
        (
            {"sampling": Sampling(draw=Prefix())},
            "a law with infinitely many keys, .* first keys is for populations",
        ),
        (
            {"law": POPULATION, "sampling": Sampling(draw=Different()), "n": [31]},
            "n = 31 keys .* of 30 keys 30",
        ),
        (
            {"law": POPULATION, "sampling": Sampling(draw=Strata()), "n": [10, 31]},
            "n = 31 keys .* of 30 keys 30",
        ),
        ({**AROUND, "n": [27]}, "n = 27 keys were asked for, but of 30 keys 26 are left"),
        (
            {"law": WEIGHTED, "sampling": Sampling(draw=Block())},
            "weighted population takes independent plain keys",
        ),
        ({"statistic": "sup"}, r"'sup' takes radius, restarts, got nothing of it"),
        ({"statistic": Sup(1.0), "queries": Own()}, "ball, not the tokens"),
        ({"statistic": Sup(1.0), **AROUND}, "needs keys that all queries share"),
        ({"statistic": "moment"}, r"'moment' takes order, got nothing of it"),
        ({"statistic": "mean", "queries": 1}, "at least 2 queries, got 1"),
        ({"queries": EYE[0]}, r"queries must have shape \(m, 2\)"),
        ({"queries": torch.ones(3, 5).double()}, "queries must have shape"),
        ({**AROUND, "queries": Own(4)}, "the n tokens read each other: no others are kept"),
        ({**AROUND, "queries": 100_001}, "at most 100,000 a replicate .* draws its own; got 100,001"),
        ({**AROUND, "queries": EYE}, "needs to know where each query stands"),
        ({**AROUND, "queries": Given(EYE, [1, 30])}, r"positions must lie in 0 … 29"),
        ({"head": Head(torch.stack([EYE, EYE]))}, "one head at a time"),
        ({"head": HEAD.linear()}, "is for softmax attention"),
        ({"head": Head(torch.eye(3, dtype=torch.float64))}, "3-dimensional keys"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "head": HEAD,
        "law": LAW,
        "n": [10],
        "replicates": 2,
        "generator": 0,
    } | change
    with pytest.raises(InputError, match=message):
        measure_convergence(arguments.pop("head"), arguments.pop("law"), arguments.pop("n"), **arguments)


def test_positions_are_one_a_query() -> None:
    with pytest.raises(InputError, match="positions must be 2 whole numbers"):
        Given(EYE, [1, 2, 3])


@pytest.mark.parametrize("statistic", ["map", "mean", "covariance"])
def test_laws_without_a_limit_say_so(statistic: str) -> None:
    with pytest.raises(LimitDoesNotExist, match="No limit"):
        measure_convergence(HEAD, StudentT(2, df=3.0), [10], statistic=statistic, replicates=2, generator=0)


def test_methods_that_cannot_be_built() -> None:
    with pytest.raises(InputError, match="radius must be a finite number above 0"):
        Sup(-1.0)
    with pytest.raises(InputError, match="order must be a whole number"):
        Moment(0)
    with pytest.raises(InputError, match="queries must be a whole number"):
        Own(0)
