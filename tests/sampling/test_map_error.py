"""Errors of the map, for laws and populations under every way of drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnlimit import Empirical, FromSampler, Gaussian, Head, clt, exact_error
from attnlimit.designs import Block, Coins, Different, Independent, Kept, Sampling, draws
from attnlimit.sampling import Given, Own, measure_convergence


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


HEAD = Head(0.6 * _normal(2, 2, seed=1), _normal(3, 2, seed=2))
LAW = Gaussian(cov=[1.0, 0.4])
POPULATION = Empirical(_normal(80, 2, seed=3), _normal(80, 2, seed=4))
SMALL = POPULATION.select(torch.arange(60))
"""Few enough for the exact error of different keys."""


def test_mean_square_is_the_central_limit_theorems() -> None:
    """n = 4000, 400 replicates: within 5 standard errors (rate 6e-7) plus 1 % for terms of higher order,
    which are of relative order 1/n_eff."""
    x = _normal(8, 2, seed=5)
    theory = clt(HEAD, LAW, x)
    assert float(theory.effective_tokens(4000).min()) > 500
    expected = float(theory.covariance.diagonal(dim1=-2, dim2=-1).sum(-1).mean()) / 4000
    curve = measure_convergence(HEAD, LAW, [4000], queries=x, replicates=400, generator=6)
    error = float(curve.squares.std()) / 400**0.5
    assert abs(float(curve.squares.mean()) - expected) < 5 * error + 0.01 * expected
    assert 5 * error < 0.3 * expected


def test_rows_hold_means_over_the_queries_of_the_definition() -> None:
    x = _normal(5, 2, seed=7)
    curve = measure_convergence(HEAD, LAW, [30, 10], queries=x, replicates=2, generator=8)
    tokens = LAW.sample(30, generator=torch.Generator().manual_seed(8)).tokens
    assert curve.n == (30, 10)
    for j, n in enumerate(curve.n):
        error = (HEAD(Empirical(tokens[:n]))(x) - HEAD(LAW)(x)).norm(dim=-1)
        assert float(curve.norms[0, j]) == pytest.approx(float(error.mean()), rel=1e-12)
        assert float(curve.squares[0, j]) == pytest.approx(float(error.square().mean()), rel=1e-12)


def test_self_attention_keeps_the_query_among_its_keys() -> None:
    """With strong scores A = 40 I a query attends to itself alone: Γ_1 … Γ_n return the query."""
    head = Head(40 * torch.eye(2, dtype=torch.float64))
    law = Empirical(torch.nn.functional.normalize(_normal(500, 2, seed=9), dim=-1))
    own = measure_convergence(head, law, [5], queries=Own(5), replicates=200, generator=1)
    fresh = measure_convergence(head, law, [5], queries=5, replicates=200, generator=1)
    assert float(own.mean) < 0.2 * float(fresh.mean)


@pytest.mark.parametrize("queries", [10, Own(10)])
@pytest.mark.parametrize("draw", draws())
@pytest.mark.parametrize("statistic", ["map", "mean", "covariance"])
def test_every_draw_sees_the_whole_population_in_the_end(
    draw: str, queries: int | Own, statistic: str
) -> None:
    plan = Sampling(draw=draws()[draw]())
    curve = measure_convergence(
        HEAD, POPULATION, [10, 40, 80], sampling=plan, statistic=statistic, queries=queries, replicates=2,
        generator=2,
    )  # fmt: skip
    assert curve.squares.shape == (2, 3)
    if draw != "independent":
        assert float(curve.squares[:, 2].abs().max()) < 1e-20
    assert float(curve.squares[:, 0].abs().min()) > 0


@pytest.mark.parametrize("draw", draws())
@pytest.mark.parametrize("kept", [Kept(own=True, sinks=2), Kept(around=6), Kept(window=3, top=4)])
def test_beside_kept_keys_every_draw_sees_the_rest_in_the_end(draw: str, kept: Kept) -> None:
    """Nothing is left at n = 70 but by chance: all keys that are not kept were drawn, whatever they weigh."""
    plan = Sampling(draw=draws()[draw](), kept=kept, weight="rest")
    few = measure_convergence(HEAD, POPULATION, [10, 70], sampling=plan, queries=4, replicates=2, generator=2)
    rest = 80 - int(kept.mask(torch.zeros(1, 80), torch.tensor([40])).sum())
    assert float(few.squares.min()) > 0
    if draw not in ("independent", "coins", "chances"):
        places = draws()[draw]().places(rest, [rest], torch.Generator().manual_seed(0))[0]
        assert places.sort().values.tolist() == list(range(rest))


def test_kept_keys_around_a_query_are_attended_to_with_what_is_drawn() -> None:
    """The first key alone is drawn, from the rest: attention over it and the 6 keys around each query."""
    positions = torch.tensor([0, 33, 79])
    x = _normal(3, 2, seed=10)
    curve = measure_convergence(
        HEAD,
        POPULATION,
        [1],
        sampling=Sampling(draw=draws()["prefix"](), kept=Kept(around=6)),
        queries=Given(x, positions),
        replicates=2,
        generator=0,
    )
    truth = HEAD(POPULATION)(x)
    keys = [[*range(6), 6], [0, *range(30, 36)], [0, *range(74, 80)]]
    errors = [
        (HEAD(POPULATION.select(torch.tensor(one)))(x[i]) - truth[i]).norm() for i, one in enumerate(keys)
    ]
    assert float(curve.errors[0, 0]) == pytest.approx(float(torch.stack(errors).mean()), rel=1e-12)
    assert "keeping 6 around" in curve.method


class Three(Coins):
    """Three keys came up where one was meant."""

    def places(self, population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
        return [torch.arange(3)]


def test_keys_by_coins_stand_for_as_many_as_were_meant_not_as_came_up() -> None:
    """R/n = 6 each, as in the exact error, not R/3."""
    few, x = POPULATION.select(torch.arange(8)), _normal(1, 2, seed=12)
    plan = Sampling(draw=Three(), kept=Kept(own=True, sinks=1), weight="rest")
    found = measure_convergence(HEAD, few, [1], sampling=plan, queries=Given(x, [5]), replicates=2)
    read = few.select(torch.tensor([0, 5, 1, 2, 3]), torch.tensor([1.0, 1.0, 6.0, 6.0, 6.0]).double())
    assert float(found.errors[0, 0]) == pytest.approx(float((HEAD(read)(x) - HEAD(few)(x)).norm()), rel=1e-12)


@pytest.mark.parametrize("draw", [Independent(), Different(), Coins()])
@pytest.mark.parametrize("weight", ["plain", "rest"])
def test_monte_carlo_agrees_with_the_exact_error_of_the_same_sampling(draw, weight: str) -> None:
    """400 replicates at two n: within 5 standard errors (rate 1e-6 a case); the other weight is not."""
    positions, x = torch.tensor([5, 50]), 2 * _normal(2, 2, seed=12)
    plan = Sampling(draw=draw, kept=Kept(own=True, sinks=2), weight=weight)
    found = measure_convergence(
        HEAD, SMALL, [4, 30], sampling=plan, queries=Given(x, positions), replicates=400, generator=3
    )
    mean, error = found.squares.mean(0), found.squares.std(0) / 400**0.5
    exact = exact_error(HEAD, SMALL, [4, 30], x, sampling=plan, positions=positions).mean_square.mean(0)
    assert bool(((mean - exact).abs() < 5 * error).all())
    other = replace(plan, weight="rest" if weight == "plain" else "plain")
    wrong = exact_error(HEAD, SMALL, [4, 30], x, sampling=other, positions=positions).mean_square.mean(0)
    assert bool(((mean - wrong).abs() > 5 * error).any())


def test_weighted_populations_are_drawn_by_weight() -> None:
    """All weight on one key: any n keys are that key, and the error is zero."""
    weights = torch.zeros(80, dtype=torch.float64)
    weights[7] = 1.0
    law = Empirical(POPULATION.tokens, POPULATION.values, weights)
    curve = measure_convergence(HEAD, law, [3], replicates=2, generator=0)
    assert float(curve.errors.max()) < 1e-12


def test_same_seed_same_rows_and_fewer_replicates_are_the_first_ones() -> None:
    def curve(replicates: int, seed: int) -> Tensor:
        return measure_convergence(
            HEAD, LAW, [20, 50], queries=9, replicates=replicates, generator=seed
        ).errors

    assert torch.equal(curve(6, 1), curve(6, 1))
    assert torch.equal(curve(6, 1)[:4], curve(4, 1))
    assert not torch.equal(curve(6, 1), curve(6, 2))


def test_reference_and_method_say_how() -> None:
    curve = measure_convergence(HEAD, LAW, [20], queries=4, replicates=2, generator=0)
    assert curve.reference == "closed-form limit for Gaussian(dim=2, diagonal covariance)"
    assert curve.method == "Monte Carlo, 2 replicates, nested prefixes, m = 4 fresh queries a replicate"
    population = measure_convergence(
        HEAD, POPULATION, [20], sampling=Sampling(draw=Block()), replicates=2, generator=0
    )
    assert population.reference == "attention over the whole population of 80 keys"
    assert "neighbouring keys" in population.method
    sampled = FromSampler(lambda u: u, dim=2, points=1024, scrambles=2)
    assert "quasi-Monte Carlo" in measure_convergence(HEAD, sampled, [5], replicates=2, generator=0).reference


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    measure_convergence(HEAD, LAW, [5], replicates=3, generator=0, progress=lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]
