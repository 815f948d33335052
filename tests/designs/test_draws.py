"""Every way of drawing: sizes, ranges, nesting, and how often each key is taken."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnlimit.designs import Block, Coins, Kept, Strata, draws


@st.composite
def population_and_sizes(draw: st.DrawFn) -> tuple[int, list[int]]:
    population = draw(st.integers(1, 60))
    sizes = draw(st.sets(st.integers(1, population), min_size=1, max_size=6))
    return population, sorted(sizes)


@pytest.mark.parametrize("name", draws())
@given(case=population_and_sizes(), seed=st.integers(0, 2**32 - 1))
def test_sizes_ranges_and_nesting(name: str, case: tuple[int, list[int]], seed: int) -> None:
    population, sizes = case
    way = draws()[name]()
    sets = way.places(population, sizes, torch.Generator().manual_seed(seed))
    assert len(sets) == len(sizes)
    for keys, size in zip(sets, sizes, strict=True):
        assert len(keys) == size or name in ("coins", "chances")
        assert len(keys) >= 1
        assert 0 <= int(keys.min()) <= int(keys.max()) < population
        if not way.repeats:
            assert len(keys.unique()) == len(keys)
    if way.nested:
        for smaller, larger in pairwise(sets):
            assert torch.equal(larger[: len(smaller)], smaller)


@pytest.mark.parametrize("name", ["independent", "different", "coins", "strata", "neyman"])
def test_every_key_is_taken_equally_often(name: str, generator: torch.Generator) -> None:
    """Counts of 12 keys in 4000 draws of 4: a chi-square test with false-alarm rate at most 1e-6."""
    population, size, repeats, way = 12, 4, 4000, draws()[name]()
    counts = torch.zeros(population)
    for _ in range(repeats):
        counts += torch.bincount(way.places(population, [size], generator)[0], minlength=population)
    expected = repeats * size / population
    if name == "coins":  # given that there is a key
        expected /= 1 - (1 - size / population) ** population
    chi2 = float((counts - expected).square().sum() / expected)  # counts vary at most like Poisson ones here
    assert chi2 < stats.chi2.ppf(1 - 1e-6, population)


def test_block_is_contiguous_with_a_uniform_start(generator: torch.Generator) -> None:
    """9 possible starts, 9000 draws; chi-square with false-alarm rate 1e-6."""
    starts = torch.zeros(9)
    for _ in range(9000):
        inner, outer = Block().places(12, [4, 9], generator)
        for keys in (inner, outer):
            assert torch.equal(keys.sort().values, torch.arange(int(keys.min()), int(keys.min()) + len(keys)))
        starts[int(inner.min())] += 1
    assert float((starts - 1000).square().sum() / 1000) < stats.chi2.ppf(1 - 1e-6, 8)


@pytest.mark.parametrize(("population", "size"), [(50, 10), (6, 1), (3, 1)])
def test_coins_fall_on_a_binomial_number_of_keys_given_that_there_is_one(population, size):
    """4,000 draws; chi-square with false-alarm rate 1e-6."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.tensor([len(Coins().places(population, [size], generator)[0]) for _ in range(4000)])
    chance = torch.as_tensor(stats.binom.pmf(range(population + 1), population, size / population))
    chance[0] = 0.0
    expected = 4000 * chance / chance.sum()
    some = expected > 5
    counts = torch.bincount(numbers, minlength=population + 1)
    assert int(counts[0]) == 0
    chi2 = ((counts - expected).square() / expected)[some].sum()
    assert float(chi2) < stats.chi2.ppf(1 - 1e-6, int(some.sum()))


def test_stratified_takes_one_key_of_each_stratum(generator: torch.Generator) -> None:
    (keys,) = Strata().places(100, [8], generator)
    edges = torch.arange(9) * 100 // 8
    assert bool(((keys >= edges[:-1]) & (keys < edges[1:])).all())


@pytest.mark.parametrize(("position", "start"), [(0, 0), (1, 0), (10, 8), (19, 15), (17, 15)])
def test_keys_around_a_query_are_shifted_into_the_text(position: int, start: int) -> None:
    kept = Kept(around=5).mask(torch.zeros(1, 20), torch.tensor([position]))
    assert kept[0].nonzero()[:, 0].tolist() == list(range(start, start + 5))
