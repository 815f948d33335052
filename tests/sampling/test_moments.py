"""The control-variate estimator of output moments: exact with all queries, unbiased with some of them."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from attnlimit import Box, Empirical, Gaussian, Head, Measure, Sphere
from attnlimit.designs import Different, Sampling
from attnlimit.sampling import Moment, Own, measure_convergence, replicates
from attnlimit.sampling.moments import LimitAverages, MomentErrors, covariance_square, moment_square
from attnlimit.sampling.reference import Power, output_covariance, output_moment
from attnlimit.sampling.statistic import set_up

LAWS = {"gaussian": Gaussian(mean=[0.3, -0.2, 0.1], cov=[0.5, 1.0, 0.8]), "sphere": Sphere(3, 1.5)}


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


HEAD = Head(0.7 * _normal(3, 3, seed=1), _normal(2, 3, seed=2))
MILD_HEAD = HEAD.scaled(0.3)


def _brute_force(law: Measure, tokens: Tensor, statistic: str, head: Head = HEAD) -> float:
    """‖moment of the n outputs − moment of the limit‖², from the definitions."""
    y = head(Empirical(tokens))(tokens)
    mean, covariance = _truth(law, head)
    if statistic == "mean":
        return float((y.mean(0) - mean).square().sum())
    if statistic == "covariance":
        return float((torch.cov(y.T, correction=0) - covariance).square().sum())
    return float((y.T @ y / len(y) - covariance - torch.outer(mean, mean)).square().sum())


@cache
def _truth(law: Measure, head: Head) -> tuple[Tensor, Tensor]:
    outputs = head(law).pushforward(law)
    return outputs.mean, outputs.covariance


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("statistic", ["mean", "covariance", "moment"])
def test_all_queries_give_the_brute_force_value_on_the_same_tokens(name: str, statistic: str) -> None:
    law, n = LAWS[name], [20, 90]
    order = 2 if statistic == "moment" else None
    asked = statistic if order is None else Moment(order)
    curve = measure_convergence(
        HEAD,
        law,
        n,
        statistic=asked,
        queries=Own(90),
        replicates=2,
        generator=3,
    )
    tokens = law.sample(90, generator=torch.Generator().manual_seed(3)).tokens  # the first thing drawn
    expected = torch.tensor([_brute_force(law, tokens[:size], statistic) for size in n], dtype=torch.float64)
    torch.testing.assert_close(curve.squares[0], expected, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(curve.norms, curve.squares.sqrt())
    assert "all n queries" in curve.method


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("power", [Power(1), Power(2), Power(3), Power(3, full=False), None])
def test_on_average_over_the_choice_of_queries_nothing_changes(name: str, power: Power | None) -> None:
    """One draw of 60 tokens, 2000 choices of 12 queries among them: the average square is that of all queries
    within 5 standard errors (false-alarm rate 6e-7), and without the correction it is not."""
    law, generator = LAWS[name], torch.Generator().manual_seed(5)
    tokens = law.sample(60, generator=generator).tokens
    y, g = HEAD(Empirical(tokens))(tokens), HEAD(law)(tokens)
    plan = set_up(HEAD, law, [60], Sampling(), Own(12))
    truth = MomentErrors(plan, power).truth

    def square(sample: replicates.Sample) -> float:
        base = LimitAverages(truth, power).at(sample)
        if power is None:
            return float(covariance_square(sample, base, truth))
        return float(moment_square(sample, base, power))

    exact = square(replicates.Sample(y, g, 0.0, g))
    corrected, plain = [], []
    for _ in range(2000):
        chosen = torch.randperm(60, generator=generator)[:12]
        sample = replicates.Sample(y[chosen], g[chosen], (1 - 12 / 60) / 12, g)
        corrected.append(square(sample))
        plain.append(square(sample._replace(rest=0.0)))
    for rows, unbiased in ((torch.tensor(corrected), True), (torch.tensor(plain), False)):
        error = float(rows.std()) / len(rows) ** 0.5
        assert (abs(float(rows.mean()) - exact) < 5 * error) == unbiased


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("statistic", ["mean", "covariance"])
def test_agrees_with_brute_force_on_independent_draws(name: str, statistic: str) -> None:
    """Mean square at n = 150 from 60 queries and from all of them, 400 draws each: within 5 standard errors
    of the difference (false-alarm rate 6e-7)."""
    law, head = LAWS[name], MILD_HEAD
    curve = measure_convergence(
        head, law, 150, statistic=statistic, queries=Own(60), replicates=400, generator=7
    )
    brute = torch.tensor([_brute_force(law, tokens, statistic, head) for tokens in _draws(name)])
    ours = curve.squares[:, 0]
    error = math.sqrt((float(ours.var()) + float(brute.var())) / 400)
    assert abs(float(ours.mean()) - float(brute.mean())) < 5 * error
    assert 5 * error < 0.8 * float(brute.mean())  # a factor of two would be seen


def _draws(name: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(8)
    return [LAWS[name].sample(150, generator=generator).tokens for _ in range(400)]


@pytest.mark.parametrize("statistic", ["mean", "covariance"])
def test_given_queries_are_compared_as_they_are(statistic: str) -> None:
    law, x = LAWS["gaussian"], _normal(12, 3, seed=9)
    curve = measure_convergence(HEAD, law, [25], statistic=statistic, queries=x, replicates=2, generator=4)
    tokens = law.sample(25, generator=torch.Generator().manual_seed(4)).tokens
    y, g = HEAD(Empirical(tokens))(x), HEAD(law)(x)
    if statistic == "mean":
        expected = (y.mean(0) - g.mean(0)).norm()
    else:
        expected = (torch.cov(y.T, correction=0) - torch.cov(g.T, correction=0)).norm()
    assert float(curve.errors[0, 0]) == pytest.approx(float(expected), rel=1e-9)
    assert "at the same queries" in curve.reference


@pytest.mark.parametrize("statistic", ["mean", "covariance"])
def test_fresh_queries_stand_for_infinitely_many(statistic: str) -> None:
    """One set of keys, 1500 draws of 16 fresh queries, against 200,000 queries: within 5 standard errors."""
    law, generator = LAWS["gaussian"], torch.Generator().manual_seed(11)
    plan = set_up(HEAD, law, [50], Sampling(), 16)
    (sample,) = replicates.replicate(plan, generator)
    assert sample.all_limits is None
    assert sample.rest == 1 / 16
    truth = MomentErrors(plan, None).truth
    x = law.sample(200_000, generator=generator).tokens
    y, g = HEAD(law.sample(50, generator=generator))(x), HEAD(law)(x)
    wanted = y.mean(0) - truth.mean if statistic == "mean" else torch.cov(y.T).flatten() - truth.value
    rows = []
    for _ in range(1500):
        drawn = torch.randint(len(x), (16,), generator=generator)
        sample = replicates.Sample(y[drawn], g[drawn], 1 / 16)
        fresh = (
            moment_square(sample, None, Power(1))
            if statistic == "mean"
            else covariance_square(sample, None, truth)
        )
        rows.append(float(fresh))
    squares, exact = torch.tensor(rows), float(wanted.square().sum())
    error = float(squares.std()) / 1500**0.5
    assert abs(float(squares.mean()) - exact) < 5 * error
    assert error < 0.1 * exact


def test_fresh_queries_give_squares_alone() -> None:
    curve = measure_convergence(HEAD, LAWS["gaussian"], [20], statistic="mean", replicates=2, generator=0)
    assert curve.norms is None
    assert "output law of fresh queries" in curve.method


def test_population_moments_are_those_of_all_outputs() -> None:
    population = Empirical(_normal(70, 3, seed=12))
    y = HEAD(population)(population.tokens)
    limit = HEAD(population)
    covariance = output_covariance(limit, population, 10)
    torch.testing.assert_close(covariance.value.view(2, 2), torch.cov(y.T, correction=0))
    third = output_moment(limit, population, Power(3), 10)
    torch.testing.assert_close(third.value.view(2, 2, 2), torch.einsum("ia,ib,ic->abc", y, y, y) / 70)
    curve = measure_convergence(
        HEAD, population, [10, 70], statistic="covariance", sampling=Sampling(draw=Different()), queries=Own(70),
        replicates=3, generator=1,
    )  # fmt: skip
    assert float(curve.errors[:, 1].max()) < 1e-12  # all of the population is the population
    assert curve.reference == "outputs of the whole population of 70 keys"


def test_weighted_population_moments() -> None:
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    population = Empirical(_normal(3, 3, seed=13), weights=weights)
    y = HEAD(population)(population.tokens)
    centred = y - weights @ y
    covariance = output_covariance(HEAD(population), population, 10)
    torch.testing.assert_close(covariance.value.view(2, 2), (weights[:, None] * centred).T @ centred)


def test_unknown_moments_come_from_a_seeded_average_with_its_error() -> None:
    """Box in one dimension, Γ(x) = coth(2x) − 1/(2x): fourth moment by quadrature, within 5 standard errors."""
    law, head = Box(1), Head([[2.0]])
    curve = measure_convergence(
        head, law, [10], statistic=Moment(4), queries=Own(), replicates=2, generator=0
    )
    assert "seeded draws, standard error" in curve.reference
    error = float(curve.reference.rsplit(" ", 1)[1])
    x = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    exact = torch.trapezoid(head(law)(x[:, None])[:, 0] ** 4, x) / 2
    value = output_moment(head(law), law, Power(4), 2**18).value
    assert abs(float(value) - float(exact)) < 5 * error < 0.02 * float(exact)
    covariance = output_covariance(head(law), law, 2**18)
    variance = torch.trapezoid(head(law)(x[:, None])[:, 0] ** 2, x) / 2
    assert float(covariance.value) == pytest.approx(float(variance), rel=0.01)


def test_gaussian_moments_of_any_order_are_closed_forms() -> None:
    law = LAWS["gaussian"]
    reference = output_moment(HEAD(law), law, Power(3), 10)
    assert "closed-form moments" in reference.text
    y = HEAD(law)(law.sample(400_000, generator=3).tokens)
    sampled = torch.einsum("ia,ib,ic->iabc", y, y, y).flatten(1)
    error = sampled.std(0) / 400_000**0.5
    assert bool(((sampled.mean(0) - reference.value).abs() < 5 * error).all())  # 8 entries: rate 5e-6


def test_large_moment_tensors_are_reduced_and_say_so() -> None:
    law = Gaussian(cov=0.1, dim=30)
    head = Head(torch.eye(30, dtype=torch.float64))
    curve = measure_convergence(
        head,
        law,
        [20],
        statistic=Moment(3),
        queries=Own(5),
        replicates=2,
        generator=0,
    )
    assert "powers 3 of single coordinates" in curve.method
