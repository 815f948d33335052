"""What the bounds refuse, in words; and what their results say of themselves."""

import copy
import json
import pickle
from collections.abc import Callable

import pytest
import torch

from attnlimit import (
    Empirical,
    FromSampler,
    Gaussian,
    Head,
    HypothesisFailed,
    InputError,
    Laplace,
    Measure,
    Mixture,
    Rademacher,
    Sphere,
    bounds,
)

HEAD = Head([[0.5, 0.1], [0.0, 0.4]])
X = [[1.0, 0.0], [0.3, -0.2], [0.0, 0.0]]
Call = Callable[[Head, Measure], bounds.Bound]

OF_A_LAW: dict[str, Call] = {
    "mean square": lambda head, law: bounds.mean_square(head, law, X, 10),
    "averaged": lambda head, law: bounds.averaged(head, law, 10),
    "fixed query": lambda head, law: bounds.fixed_query(head, law, X, 10, 0.1),
    "uniform": lambda head, law: bounds.uniform(head, law, 1.0, 10, 0.1),
    "empirical": lambda head, law: bounds.empirical(
        head, Sphere(2).sample(10, generator=0), X, 0.1, population=law
    ),
}


@pytest.mark.parametrize("name", OF_A_LAW)
def test_heavy_tails_are_refused(name: str) -> None:
    need = "compact support" if name == "empirical" else "bounded or sub-Gaussian tokens"
    message = f"The {name} bound needs {need}, but .* has radius = inf.* Use attnlimit.exact_error"
    for law in (Laplace(2), Mixture([0.5, 0.5], [Sphere(2), Laplace(2)])):
        with pytest.raises(HypothesisFailed, match=message):
            OF_A_LAW[name](HEAD, law)


@pytest.mark.parametrize("name", OF_A_LAW)
def test_sub_gaussian_laws_have_numbers(name: str) -> None:
    for law in (Gaussian(dim=2), Mixture([0.5, 0.5], [Sphere(2), Gaussian(dim=2)])):
        if name == "empirical":
            with pytest.raises(HypothesisFailed, match="The empirical bound needs compact support"):
                OF_A_LAW[name](HEAD, law)
            continue
        made = OF_A_LAW[name](HEAD, law)
        assert bool(torch.isfinite(made.value).all())
        assert made.hypotheses[0].startswith("keys are sub-Gaussian")
        json.dumps(made.to_dict(), allow_nan=False)
    with pytest.raises(InputError, match="must be 'exact' or 'closed form', got 'sampled'"):
        bounds.averaged(HEAD, Gaussian(dim=2), 10, generator=0)
    with pytest.raises(InputError, match="must be 'jensen', got 'net'"):
        bounds.uniform(HEAD, Gaussian(dim=2), 1.0, 10, 0.1, method="net")


@pytest.mark.parametrize("name", OF_A_LAW)
def test_a_radius_seen_through_points_is_refused(name: str) -> None:
    law = FromSampler(lambda u: torch.special.ndtri(u), dim=2, points=64, scrambles=2)
    for measure in (law, Mixture([0.5, 0.5], [Sphere(2), law])):
        with pytest.raises(HypothesisFailed, match="seen through its points only: they reach"):
            OF_A_LAW[name](HEAD, measure)


@pytest.mark.parametrize("name", OF_A_LAW)
def test_only_one_softmax_head(name: str) -> None:
    with pytest.raises(InputError, match=r"one head at a time, got .* Loop over the heads"):
        OF_A_LAW[name](Head(torch.ones(3, 2, 2, dtype=torch.float64)), Sphere(2))
    with pytest.raises(InputError, match="softmax attention, got LinearHead"):
        OF_A_LAW[name](HEAD.linear(), Sphere(2))
    with pytest.raises(InputError, match="dimension 3"):
        OF_A_LAW[name](HEAD, Sphere(3))


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -0.1, float("nan")])
def test_delta_is_a_probability(delta: float) -> None:
    sample = Sphere(2).sample(5, generator=0)
    calls = [
        lambda: bounds.fixed_query(HEAD, Sphere(2), X, 10, delta),
        lambda: bounds.uniform(HEAD, Sphere(2), 1.0, 10, delta),
        lambda: bounds.empirical(HEAD, sample, X, delta, radius=1.0),
        lambda: bounds.averaged(HEAD, Sphere(2), 10, generator=0, delta=delta),
    ]
    for call in calls:
        with pytest.raises(InputError, match="delta must be a probability, between 0 and 1 exclusive"):
            call()


def test_averaged_says_what_each_method_needs() -> None:
    with pytest.raises(
        HypothesisFailed, match=r"sub-Gaussian queries, but .*Laplace.* has no variance proxy"
    ):
        bounds.averaged(HEAD, Sphere(2), 10, Laplace(2))
    points = FromSampler(lambda u: torch.special.ndtri(u), dim=2, points=64, scrambles=2)
    with pytest.raises(
        HypothesisFailed, match=r"averaged bound needs a known radius .* seen through its points"
    ):
        bounds.averaged(HEAD, Sphere(2), 10, points)
    with pytest.raises(InputError, match="method must be 'exact', 'sampled' or 'closed form', got 'best'"):
        bounds.averaged(HEAD, Sphere(2), 10, method="best")
    with pytest.raises(InputError, match="'exact' averages over given queries or tokens"):
        bounds.averaged(HEAD, Sphere(2), 10, method="exact")
    with pytest.raises(InputError, match="queries are empty"):
        bounds.averaged(HEAD, Sphere(2), 10, torch.empty(0, 2, dtype=torch.float64))
    with pytest.raises(InputError, match="draws queries: pass generator="):
        bounds.averaged(HEAD, Sphere(2), 10, method="sampled")
    with pytest.raises(InputError, match="samples must be at least 2"):
        bounds.averaged(HEAD, Sphere(2), 10, generator=0, samples=1)
    with pytest.raises(InputError, match="needs the law of the queries, got an array"):
        bounds.averaged(HEAD, Sphere(2), 10, X, method="closed form")
    with pytest.raises(InputError, match=r"2-dimensional queries, but .* has dimension 3"):
        bounds.averaged(HEAD, Sphere(2), 10, Sphere(3))
    assert bounds.averaged(HEAD, Sphere(2), 10, Laplace(2), generator=0).inputs["method"] == "sampled"


def test_uniform_methods_and_radius() -> None:
    with pytest.raises(InputError, match="method must be 'kernel', 'jensen' or 'net', got 'chaining'"):
        bounds.uniform(HEAD, Sphere(2), 1.0, 10, 0.1, method="chaining")
    with pytest.raises(InputError, match="radius must be a finite number above 0"):
        bounds.uniform(HEAD, Sphere(2), 0.0, 10, 0.1)
    with pytest.raises(InputError, match="whole number"):
        bounds.uniform(HEAD, Sphere(2), 1.0, 0, 0.1)


def test_empirical_needs_to_know_the_support() -> None:
    sample = Rademacher(2).sample(50, generator=0)
    with pytest.raises(InputError, match=r"Give either population=.* a sample alone cannot exclude"):
        bounds.empirical(HEAD, sample, X, 0.1)
    with pytest.raises(InputError, match="Give either population="):
        bounds.empirical(HEAD, sample, X, 0.1, population=Rademacher(2), radius=2.0)
    with pytest.raises(
        HypothesisFailed, match=r"radius = 1 was given, but a key in the sample has norm 1\.414"
    ):
        bounds.empirical(HEAD, sample, X, 0.1, radius=1.0)
    with pytest.raises(HypothesisFailed, match=r"value_radius = 1 was given, but a value .* norm 1\.414"):
        bounds.empirical(HEAD, sample, X, 0.1, radius=2.0, value_radius=1.0)
    with pytest.raises(HypothesisFailed, match="population's radius = 1 was given, but a key"):
        bounds.empirical(HEAD, sample, X, 0.1, population=Sphere(2))
    far = Empirical([[1.0, 0.0]], values=[[9.0, 0.0]])
    with pytest.raises(
        HypothesisFailed, match="population's value radius = 1 was given, but a projected value"
    ):
        bounds.empirical(HEAD, far, X, 0.1, population=Sphere(2))
    with pytest.raises(InputError, match="has weights, but the bound is for independent draws"):
        bounds.empirical(HEAD, Empirical([[0.0, 1.0], [1.0, 0.0]], weights=[0.3, 0.7]), X, 0.1, radius=1.0)
    with pytest.raises(InputError, match="tokens must be an Empirical measure"):
        bounds.empirical(HEAD, Sphere(2), X, 0.1, radius=1.0)


def test_radius_and_population_agree_where_they_know_the_same() -> None:
    sample = Sphere(2).sample(1000, generator=0)
    by_law = bounds.empirical(HEAD, sample, X, 0.1, population=Sphere(2)).value
    by_radius = bounds.empirical(HEAD, sample, X, 0.1, radius=1.0).value
    torch.testing.assert_close(by_law, by_radius)


@pytest.mark.parametrize("name", OF_A_LAW)
def test_results_tell_how_they_were_got(name: str) -> None:
    made = OF_A_LAW[name](HEAD, Sphere(2))
    plain = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert plain["value"] == made.value.tolist()
    assert plain["hypotheses"]
    assert plain["inputs"]["R_V"] == pytest.approx(1.0)
    assert (made.confidence is None) == (name in ("mean square", "averaged"))
    assert repr(made).startswith(f"Bound({name.replace(' ', '_')}: ")
    for one in (made, pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert one.to_dict() == made.to_dict()
        with pytest.raises(TypeError):
            one.inputs["R_V"] = 0.0


def test_an_overflowing_constant_is_null_in_json() -> None:
    made = bounds.uniform(HEAD, Sphere(2, radius=1e4), 1.0, 10, 0.1)
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False))["constant"] is None
    assert float(made.value) == 2e4


def test_shapes_over_queries_and_n() -> None:
    law = Sphere(2)
    assert bounds.mean_square(HEAD, law, X, 10).value.shape == (3,)
    assert bounds.mean_square(HEAD, law, X, [10, 20]).value.shape == (3, 2)
    assert bounds.fixed_query(HEAD, law, X[0], range(1, 5), 0.1).value.shape == (4,)
    assert bounds.uniform(HEAD, law, 1.0, torch.tensor([1, 10]), 0.1).value.shape == (2,)
    assert bounds.averaged(HEAD, law, 10).value.shape == ()
    empty = torch.empty(0, 2, dtype=torch.float64)
    assert repr(bounds.mean_square(HEAD, law, empty, 10)) == "Bound(mean_square: mean square ≤ shape (0,))"
