"""Sharing keys out: against brute force, closed forms, and the bound that every split obeys."""

import math
import time
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlimit.errors import InputError
from attnlimit.models.budget.allocate import Allocation, Choice, split_total, uniform_total
from attnlimit.rates.error_curve import ErrorCurve


def squares(n, square, keys=None, **options) -> ErrorCurve:
    error = torch.tensor([math.sqrt(one) for one in square], dtype=torch.float64)
    read = None if keys is None else torch.tensor(keys, dtype=torch.float64)
    return ErrorCurve(tuple(n), error, keys=read, **options)


def power(scale: float, exponent: float, grid=(1, 2, 4, 8, 16), weight: float = 1.0, **options) -> Choice:
    return Choice((squares(grid, [scale * n**-exponent for n in grid], **options),), weight)


def brute_force(heads: list[Choice], total: float) -> float:
    """The least error over every split into whole numbers, full attention included."""
    choices = []
    for head in heads:
        found = []
        for one in head.curves:
            stop = one.n[-1] if one.full is None else one.full
            found += [(one.keys_at(n), head.weight * one.at(n) ** 2) for n in range(one.n[0], stop + 1)]
        choices.append(found)
    return min(
        sum(error for _, error in split)
        for split in product(*choices)
        if sum(keys for keys, _ in split) <= total + 1e-9
    )


class TestSplit:
    @given(
        st.lists(
            st.tuples(st.floats(0.01, 10), st.floats(0.2, 1.5), st.floats(0.1, 5)), min_size=2, max_size=3
        ),
        st.integers(3, 50),
    )
    def test_convex_curves_are_split_as_by_brute_force(self, heads, total):
        choices = [power(scale, exponent, weight=weight) for scale, exponent, weight in heads]
        found = split_total(choices, total)
        assert found.total <= total
        best = brute_force(choices, total)
        assert found.error == pytest.approx(best, rel=1e-9)
        assert found.lower_bound <= best * (1 + 1e-9)

    @given(st.data(), st.integers(3, 40))
    def test_other_curves_lie_between_the_bound_and_the_next_corner(self, data, total):
        """Decreasing curves of any form, with full attention: the optimum is bracketed, and the split is the optimum
        for the total that it would take to complete the jump that did not fit."""
        steps = st.lists(st.floats(0.01, 3), min_size=4, max_size=4)
        choices = []
        for _ in range(data.draw(st.integers(2, 3))):
            square = np.exp(-np.cumsum(data.draw(steps)))
            full = data.draw(st.sampled_from([None, 14, 20]))
            choices.append(Choice((squares((1, 3, 6, 12), square, full=full),)))
        found = split_total(choices, total)
        best = brute_force(choices, total)
        assert found.total <= total
        assert best <= found.error * (1 + 1e-9)
        assert found.lower_bound <= best * (1 + 1e-9)
        assert found.error <= uniform_total(choices, total).error * (1 + 1e-12)
        # The split is not further from the optimum than one jump of one head: its error is at most what the lower
        # bound says for a total smaller by the longest jump.
        shorter = total - 20
        if shorter >= len(choices):
            assert found.error <= brute_force(choices, shorter) * (1 + 1e-9)

    @given(st.data(), st.integers(20, 60))
    def test_kept_keys_are_counted_and_each_head_takes_its_best_way(self, data, total):
        """Two ways a head: all drawn, or some keys kept and fewer drawn; a query may see fewer keys than are drawn."""
        choices = []
        for _ in range(2):
            scale, kept, gain = (data.draw(st.floats(*ends)) for ends in ((0.1, 5), (2.5, 9.5), (0.0, 1.0)))
            grid, seen = (1, 2, 4, 8, 16), 14.0
            drawn = squares(
                (*grid, 20),
                [scale * (1 / n - 1 / 20) for n in (*grid, 20)],
                keys=[min(float(n), seen) for n in (*grid, 20)],
                full=20,
            )
            keeping = squares(
                grid, [gain * scale / n for n in grid], keys=[min(kept + n, seen) for n in grid]
            )
            choices.append(Choice((drawn, keeping)))
        found = split_total(choices, total)
        best = brute_force(choices, total)
        assert found.total <= total + 1e-6
        assert best <= found.error * (1 + 1e-9)
        assert found.lower_bound <= best * (1 + 1e-9)
        assert found.error <= brute_force(choices, total - 14) * (1 + 1e-9)
        assert found.error <= uniform_total(choices, total).error * (1 + 1e-12)
        assert all(
            one.keys == choices[h].curves[one.way].keys_at(one.n or 20) for h, one in enumerate(found.picks)
        )

    def test_a_corner_that_does_not_fit_leaves_its_keys_to_others(self):
        cliff = Choice((squares((1, 99), (1.0, 1.0), full=100),))  # only all of its keys help this head
        smooth = power(1.0, 1.0, range(1, 200))
        assert split_total([cliff, smooth], 102).n == (None, 2)
        assert split_total([cliff, smooth], 100).n == (1, 99)
        assert split_total([cliff, smooth], 10**6).n == (None, 199)

    def test_equal_heads_get_equal_shares_and_the_remainder(self):
        found = split_total([power(1.0, 0.7)] * 5, 33)
        assert sorted(found.n) == [6, 6, 7, 7, 7]

    def test_power_laws_follow_the_closed_form(self):
        """For c/n the optimum is n ∝ √c."""
        found = split_total([power(c, 1.0, (1, 10**6)) for c in (1.0, 4.0, 25.0)], 8000)
        assert found.n == (1000, 2000, 5000)

    def test_keys_that_do_not_help_are_not_used(self):
        # unweighted sampling beside kept keys can look like this
        rising = Choice((squares((1, 10, 100), (1.0, 0.1, 0.2)),))
        assert split_total([rising, power(1.0, 1.0)], 1000).n == (10, 16)

    def test_never_worse_than_uniform_and_much_better_when_heads_differ(self):
        choices = [power(10.0**-k, 1.0, (1, 10, 100, 1000)) for k in range(6)]
        split, even = split_total(choices, 600), uniform_total(choices, 600)
        assert even.n == (100,) * 6
        assert split.total == even.total
        assert split.error < 0.4 * even.error

    def test_a_thousand_heads_and_a_million_keys_take_seconds(self):
        rng = np.random.default_rng(0)
        grid = tuple(int(n) for n in np.unique(np.geomspace(1, 16000, 24).round()))
        choices = [power(rng.uniform(0.1, 3), rng.uniform(0.3, 1.1), grid, full=16384) for _ in range(1000)]
        start = time.process_time()
        found = split_total(choices, 10**6)
        assert time.process_time() - start < 10
        assert found.total == 10**6
        assert found.error == pytest.approx(found.lower_bound, rel=1e-9)

    def test_too_small_a_total(self):
        choices = [power(1.0, 1.0)] * 3
        for share in (split_total, uniform_total):
            with pytest.raises(InputError, match="A total of 2 keys is too small: 3 heads need 3"):
                share(choices, 2)
            with pytest.raises(InputError, match="total must be a whole number"):
                share(choices, -1)
            with pytest.raises(InputError, match="There are no curves"):
                share([], 5)
        keeping = Choice((squares((1, 9), (1.0, 0.1), keys=[21.0, 29.0]),))
        with pytest.raises(InputError, match="2 heads need 42, what they keep and one drawn key each"):
            split_total([keeping] * 2, 30)


def test_uniform_stops_at_full_attention_and_at_the_end_of_a_curve():
    choices = [power(1.0, 1.0, full=4), power(1.0, 1.0, (1, 8)), power(1.0, 1.0, (1, 100))]
    found = uniform_total(choices, 40)
    assert found.n == (None, 8, 28)
    assert found.total == 40


def test_uniform_means_keys_read():
    """20 keys each: a head that keeps 12 draws 8, another takes what is better at 20."""
    keeping = squares((1, 100), (0.5, 0.005), keys=[13.0, 112.0])
    drawing = squares((1, 100), (0.1, 0.001))
    found = uniform_total([Choice((keeping,)), Choice((keeping, drawing))], 40)
    assert [(one.way, one.n, one.keys) for one in found.picks] == [(0, 8, 20.0), (1, 20, 20.0)]


def test_zero_errors_are_no_trouble():
    choices = [Choice((squares((1, 10), (0.0, 0.0)),)), Choice((squares((1, 10), (1.0, 0.0)),))]
    assert split_total(choices, 20).n == (1, 10)


def test_bad_choices():
    with pytest.raises(InputError, match="weight must be a finite number above 0"):
        power(1.0, 1.0, weight=0.0)
    with pytest.raises(InputError, match="at least one curve"):
        Choice(())


def test_results_print():
    found = split_total([power(1.0, 1.0, full=3), power(2.0, 1.0)], 10)
    assert repr(found) == f"Allocation(2 heads, {found.total:.0f} keys in all, error {found.error:.4g})"
    assert isinstance(found, Allocation)
