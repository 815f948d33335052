"""Every refusal of measure_convergence says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnlimit import Empirical, Gaussian, Head, InputError, LimitDoesNotExist, StudentT
from attnlimit.sampling import measure_convergence

EYE = torch.eye(2, dtype=torch.float64)
HEAD = Head(EYE)
LAW = Gaussian(cov=1.0, dim=2)
TOKENS = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
POPULATION = Empirical(TOKENS)
WINDOW: dict[str, Any] = {"law": POPULATION, "policy": "window", "window": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statistic": "median"}, "Unknown statistic 'median': use one of map, mean"),
        ({"policy": "topk"}, "Unknown policy 'topk': use one of iid"),
        ({"replicates": 1}, "replicates must be at least 2, got 1"),
        ({"replicates": 0}, "replicates must be a whole number"),
        ({"n": []}, "n is empty"),
        ({"policy": "prefix"}, "policy 'prefix' draws from a finite population"),
        ({"law": POPULATION, "policy": "without-replacement", "n": [31]}, "n = 31 keys .* population has 30"),
        ({"law": POPULATION, "policy": "stratified", "n": [10, 31]}, "n = 31 keys .* population has 30"),
        (
            {
                "law": Empirical(TOKENS, weights=torch.full((30,), 1 / 30, dtype=torch.float64)),
                "policy": "block",
            },
            "weighted population takes 'iid'",
        ),
        ({"statistic": "sup"}, "'sup' and radius= go together"),
        ({"radius": 1.0}, "'sup' and radius= go together"),
        ({"statistic": "sup", "radius": -1.0}, "radius must be a finite number above 0"),
        ({"statistic": "sup", "radius": 1.0, "self_attention": True}, "ball, not the tokens"),
        ({"statistic": "sup", "radius": 1.0, **WINDOW}, "needs keys that all queries share"),
        ({"statistic": "moment"}, "'moment' and order= go together"),
        ({"order": 2}, "'moment' and order= go together"),
        ({"statistic": "mean", "queries": 1}, "queries must be at least 2 for statistic 'mean'"),
        ({"queries": EYE[0]}, r"queries must have shape \(m, 2\)"),
        ({"queries": torch.ones(3, 5).double()}, "queries must have shape"),
        ({"queries": EYE, "self_attention": True}, "queries were given"),
        ({**WINDOW, "self_attention": True}, "window's queries are members of the population already"),
        ({**WINDOW, "window": None}, "policy 'window' needs window="),
        ({**WINDOW, "window": 12}, "n = 10 is smaller than the window of 12"),
        ({**WINDOW, "queries": EYE}, "needs to know where each query stands"),
        ({**WINDOW, "positions": [1, 2]}, "needs to know where each query stands"),
        ({**WINDOW, "queries": EYE, "positions": [1, 2, 3]}, "positions must be 2 whole numbers"),
        ({**WINDOW, "queries": EYE, "positions": [1, 30]}, r"positions must lie in 0 … 29"),
        ({"window": 4}, "window= and positions= are for policy 'window'"),
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


@pytest.mark.parametrize("statistic", ["map", "mean", "covariance"])
def test_laws_without_a_limit_say_so(statistic: str) -> None:
    with pytest.raises(LimitDoesNotExist, match="No limit"):
        measure_convergence(HEAD, StudentT(2, df=3.0), [10], statistic=statistic, replicates=2, generator=0)
