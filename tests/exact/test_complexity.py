"""n(ε) is the least n that is enough."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnlimit as al
from attnlimit.errors import InputError
from attnlimit.exact.complexity import _least


@given(st.floats(0.05, 1.0), st.floats(1e-4, 2.0))
def test_bisection_finds_the_least_whole_number(exponent, target):
    (found,) = _least(lambda n: n**-exponent, torch.tensor([target], dtype=torch.float64))
    expected = max(1.0, target ** (-1 / exponent))
    if expected > 10**12:
        assert found is None
    else:
        assert found == pytest.approx(math.ceil(expected), abs=1 + 1e-9 * expected)


@pytest.mark.parametrize("horizon", [0.5, 1.0])
def test_average_over_queries(horizon):
    head, law = al.Head([[horizon]]), al.Gaussian(dim=1)
    result = al.sample_complexity(head, law, rel_error=0.1)
    rms = al.curve(head, law, [result.n - 1, result.n]).error / horizon
    assert rms[0] > 0.1 >= rms[1]
    assert result.scale == "(E_x‖Γ(x)‖²)^(1/2)"


def test_each_query_of_a_law():
    head, law, x = al.Head([[2.0]]), al.Gaussian(dim=1), [[0.1], [1.0], [4.0]]
    result = al.sample_complexity(head, law, abs_error=0.1, queries=x)
    small, middle, large = result.per_query
    assert (large, result.n, str(result)) == (None, None, "more than 10^12")
    for query, n in ((x[0], small), (x[1], middle)):
        rms = al.exact_error(head, law, [n - 1, n], [query]).rms[0]
        assert rms[0] > 0.1 >= rms[1]


def test_each_query_of_a_population():
    pop = al.Gaussian(dim=3).sample(3000, generator=0)
    head = al.Head(torch.eye(3, dtype=torch.float64))
    result = al.sample_complexity(head, pop, rel_error=0.2, queries=pop.tokens[:3])
    assert result.n == max(result.per_query)
    rms = al.exact_error(head, pop, list(result.per_query), pop.tokens[:3]).rms.diagonal()
    assert bool((rms <= result.target).all())


def test_bad_input():
    head, law = al.Head([[1.0]]), al.Gaussian(dim=1)
    with pytest.raises(InputError, match="either rel_error"):
        al.sample_complexity(head, law)
    with pytest.raises(InputError, match="rel_error must be a finite number above 0"):
        al.sample_complexity(head, law, rel_error=-0.1)
    with pytest.raises(InputError, match="give queries="):
        al.sample_complexity(head, al.Empirical([[1.0]]), rel_error=0.1)
    with pytest.raises(InputError, match="one head at a time"):
        al.sample_complexity(
            al.Head(torch.ones(2, 1, 1, dtype=torch.float64)), law, rel_error=0.1, queries=[[1.0]]
        )
    with pytest.raises(InputError, match="outputs are all zero"):
        al.sample_complexity(al.Head([[0.0]]), law, rel_error=0.1)


def test_error_that_is_rarely_exceeded():
    head, law = al.Head([[1.0]]), al.Gaussian(dim=1)
    result = al.sample_complexity(head, law, abs_error=0.4, queries=[[1.0]], delta=0.05)
    before, there = (al.error_law(head, law, n, [1.0]).exceeds(0.4) for n in (result.n - 1, result.n))
    assert there <= 0.05 < before
    assert "with probability 0.95" in repr(result)
    assert result.to_dict()["delta"] == 0.05


@pytest.mark.parametrize("delta", [None, 0.1])
def test_different_keys_of_a_population(delta):
    pop, plan = al.Gaussian(dim=1).sample(15, generator=1), al.Sampling(draw=al.Different())
    head, x = al.Head([[1.0]]), pop.tokens[:2]
    result = al.sample_complexity(head, pop, abs_error=0.3, queries=x, delta=delta, sampling=plan)
    for query, n in zip(x, result.per_query, strict=True):
        laws = [al.error_law(head, pop, k, query, sampling=plan) for k in (n - 1, n)]
        before, there = ((law.rms, 0.3) if delta is None else (law.exceeds(0.3), delta) for law in laws)
        assert there[0] <= there[1]
        assert before[0] > before[1]


def test_certainty_is_of_single_queries():
    head, law = al.Head([[1.0]]), al.Gaussian(dim=1)
    with pytest.raises(InputError, match="delta and sampling are for single queries"):
        al.sample_complexity(head, law, rel_error=0.1, delta=0.05)
    with pytest.raises(InputError, match="delta must be a probability, between 0 and 1 exclusive, got 2"):
        al.sample_complexity(head, law, rel_error=0.1, queries=[[1.0]], delta=2.0)
    with pytest.raises(InputError, match="there are 2: give direction="):
        al.sample_complexity(
            al.Head(torch.eye(2).double()), al.Gaussian(dim=2), rel_error=0.1, queries=[[1.0, 0.0]], delta=0.1
        )
