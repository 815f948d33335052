"""Every policy: sizes, ranges, nesting, and how often each key is taken."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnlimit.sampling import policies

NESTED = ["iid", "without-replacement", "bernoulli", "prefix", "block"]
DISTINCT = ["without-replacement", "bernoulli", "prefix", "block", "stratified"]


@st.composite
def population_and_sizes(draw: st.DrawFn) -> tuple[int, list[int]]:
    population = draw(st.integers(1, 60))
    sizes = draw(st.sets(st.integers(1, population), min_size=1, max_size=6))
    return population, sorted(sizes)


@pytest.mark.parametrize("name", policies.SHARED)
@given(case=population_and_sizes(), seed=st.integers(0, 2**32 - 1))
def test_sizes_ranges_and_nesting(name: str, case: tuple[int, list[int]], seed: int) -> None:
    population, sizes = case
    sets = policies.SHARED[name](population, sizes, torch.Generator().manual_seed(seed))
    assert len(sets) == len(sizes)
    for keys, size in zip(sets, sizes, strict=True):
        assert len(keys) == size or name == "bernoulli"
        assert len(keys) >= 1
        assert 0 <= int(keys.min()) <= int(keys.max()) < population
        if name in DISTINCT:
            assert len(keys.unique()) == len(keys)
    if name in NESTED:
        for smaller, larger in pairwise(sets):
            assert torch.equal(larger[: len(smaller)], smaller)


@pytest.mark.parametrize("name", ["iid", "without-replacement", "bernoulli", "stratified"])
def test_every_key_is_taken_equally_often(name: str, generator: torch.Generator) -> None:
    """Counts of 12 keys in 4000 draws of 4: a chi-square test with false-alarm rate at most 1e-6."""
    population, size, draws = 12, 4, 4000
    counts = torch.zeros(population)
    for _ in range(draws):
        counts += torch.bincount(
            policies.SHARED[name](population, [size], generator)[0], minlength=population
        )
    expected = draws * size / population
    # Counts vary at most like Poisson ones under every policy here, Bernoulli's last-resort key aside.
    share_of_empty = (1 - size / population) ** population
    excess = expected * share_of_empty / size if name == "bernoulli" else 0.0
    chi2 = float((counts - expected - excess).square().sum() / expected)
    assert chi2 < stats.chi2.ppf(1 - 1e-6, population)


def test_block_is_contiguous_with_a_uniform_start(generator: torch.Generator) -> None:
    """9 possible starts, 9000 draws; chi-square with false-alarm rate 1e-6."""
    starts = torch.zeros(9)
    for _ in range(9000):
        inner, outer = policies.block(12, [4, 9], generator)
        for keys in (inner, outer):
            assert torch.equal(keys.sort().values, torch.arange(int(keys.min()), int(keys.min()) + len(keys)))
        starts[int(inner.min())] += 1
    assert float((starts - 1000).square().sum() / 1000) < stats.chi2.ppf(1 - 1e-6, 8)


def test_bernoulli_keeps_about_n_and_never_nothing() -> None:
    """Sizes are binomial(50, 0.2) apart from the empty set; mean within 5 standard errors (rate 6e-7)."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([len(policies.bernoulli(50, [10], generator)[0]) for _ in range(2000)]).double()
    assert abs(float(sizes.mean()) - 10) < 5 * (50 * 0.2 * 0.8 / 2000) ** 0.5
    assert abs(float(sizes.var()) / 8 - 1) < 5 * (2 / 2000) ** 0.5
    rare = [len(policies.bernoulli(3, [1], generator)[0]) for _ in range(200)]
    assert min(rare) == 1


def test_stratified_takes_one_key_of_each_stratum(generator: torch.Generator) -> None:
    (keys,) = policies.stratified(100, [8], generator)
    edges = torch.arange(9) * 100 // 8
    assert bool(((keys >= edges[:-1]) & (keys < edges[1:])).all())


@pytest.mark.parametrize(("position", "start"), [(0, 0), (1, 0), (10, 8), (19, 15), (17, 15)])
def test_window_is_around_the_query_and_others_are_random(
    position: int, start: int, generator: torch.Generator
) -> None:
    (keys,) = policies.window(20, [5, 12], generator, positions=torch.tensor([position]), width=5)
    assert keys[:5].tolist() == list(range(start, start + 5))
    assert len(keys.unique()) == len(keys) == 12
    (everything,) = policies.window(20, [20], generator, positions=torch.tensor([position]), width=5)
    assert everything.sort().values.tolist() == list(range(20))


def test_window_takes_the_others_equally_often(generator: torch.Generator) -> None:
    """15 keys outside a window of 5, 3 taken, 3000 draws; chi-square with false-alarm rate 1e-6."""
    keys = policies.window(20, [8], generator, positions=torch.full((3000,), 10), width=5)[:, 5:]
    counts = torch.bincount(keys.flatten(), minlength=20)
    assert counts[8:13].sum() == 0
    outside = torch.cat([counts[:8], counts[13:]]).double()
    assert float((outside - 600).square().sum() / 600) < stats.chi2.ppf(1 - 1e-6, 15)
