"""Sharing keys out: against brute force, closed forms, and the bound that every split obeys."""

import json
import math
import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlimit.errors import InputError
from attnlimit.models.budget.allocate import Allocation, HeadCurve, least_total, split_total, uniform_total


def power(scale: float, exponent: float, grid=(1, 2, 4, 8, 16), **options) -> HeadCurve:
    return HeadCurve(tuple(grid), tuple(scale * n**-exponent for n in grid), **options)


def brute_force(curves: list[HeadCurve], total: int) -> float:
    """The least error over every split into whole numbers, full attention included."""
    choices = []
    for one in curves:
        within = [n for n in range(one.n[0], one.n[-1] + 1) if one.full is None or n < one.full]
        choices.append([(n, one.weight * one.at(n)) for n in within + [one.full] * (one.full is not None)])
    return min(
        sum(error for _, error in split) for split in product(*choices) if sum(n for n, _ in split) <= total
    )


class TestCurve:
    def test_goes_through_its_points_and_is_a_power_law_between(self):
        curve = HeadCurve((1, 4, 64), (1.0, 0.5, 0.001))
        assert [curve.at(n) for n in (1, 4, 64)] == [1.0, 0.5, 0.001]
        assert curve.at(2) == pytest.approx(math.sqrt(0.5), rel=1e-12)  # halfway in log n
        assert curve.at(16) == pytest.approx(math.sqrt(0.5 * 0.001), rel=1e-12)
        assert curve.at(1000) == 0.001

    def test_from_zero_it_is_straight_and_full_attention_has_no_error(self):
        curve = HeadCurve((0, 4, 8), (1.0, 0.2, 0.1), full=6)
        assert curve.at(1) == pytest.approx(0.8)
        assert curve.at(5) > 0
        assert curve.at(6) == 0
        assert curve.at(100) == 0

    def test_only_the_kept_keys(self):
        assert HeadCurve((0,), (0.3,)).at(0) == 0.3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"n": (1, 2), "mean_square": (1.0,)}, "one mean square error per n, got 1 errors for 2 n"),
            ({"n": (2, 1), "mean_square": (1.0, 0.5)}, "must increase"),
            ({"n": (), "mean_square": ()}, "n is empty"),
            ({"n": (-2, 1), "mean_square": (1.0, 0.5)}, "whole number of at least 1, got -2"),
            ({"n": (1, 2), "mean_square": (1.0, math.nan)}, "finite and at least 0"),
            ({"n": (1, 2), "mean_square": (1.0, -0.1)}, "finite and at least 0"),
            ({"n": (1,), "mean_square": (1.0,), "weight": 0.0}, "weight must be a finite number above 0"),
            ({"n": (1,), "mean_square": (1.0,), "full": 0}, "full must be a whole number"),
        ],
    )
    def test_refuses(self, arguments, message):
        with pytest.raises(InputError, match=message):
            HeadCurve(**arguments)

    def test_before_its_start(self):
        with pytest.raises(InputError, match="starts at n = 4"):
            HeadCurve((4, 8), (1.0, 0.5)).at(2)


class TestLeast:
    def test_is_the_least(self):
        curves = [power(1.0, 1.0, (1, 10, 100, 1000)), power(0.1, 0.5, (1, 10, 100, 1000)), power(1e-6, 1.0)]
        found = least_total(curves, 0.1)
        assert found.n == (100, 100, 1)  # 1/n ≤ 0.01; 0.1/√n ≤ 0.01; already at n = 1
        for n, curve in zip(found.n, curves, strict=True):
            assert curve.at(n) <= 0.01 * (1 + 1e-12)
            assert n == curve.n[0] or curve.at(n - 1) > 0.01

    def test_full_attention_where_it_is_no_dearer_or_the_only_way(self):
        slow, never = power(1.0, 1.0, (1, 1000), full=50), power(1.0, 0.01, (1, 1000), full=2000)
        found = least_total([slow, never], 0.1)
        assert found.n == (None, None)
        assert found.keys == (50, 2000)
        assert found.error == 0

    def test_unreachable(self):
        with pytest.raises(
            InputError, match=r"Head 1 never reaches a relative error of 0.1: at n = 16 it is 0.25"
        ):
            least_total([power(1e-9, 1), power(1.0, 1.0)], 0.1)
        with pytest.raises(InputError, match="rel_error must be a finite number above 0"):
            least_total([power(1.0, 1.0)], 0.0)
        with pytest.raises(InputError, match="There are no curves"):
            least_total([], 0.1)


class TestSplit:
    @given(
        st.lists(
            st.tuples(st.floats(0.01, 10), st.floats(0.2, 1.5), st.floats(0.1, 5)), min_size=2, max_size=3
        ),
        st.integers(3, 50),
    )
    def test_convex_curves_are_split_as_by_brute_force(self, heads, total):
        curves = [power(scale, exponent, weight=weight) for scale, exponent, weight in heads]
        found = split_total(curves, total)
        assert found.total <= total
        best = brute_force(curves, total)
        assert found.error == pytest.approx(best, rel=1e-9)
        assert found.lower_bound <= best * (1 + 1e-9)

    @given(st.data(), st.integers(3, 40))
    def test_other_curves_lie_between_the_bound_and_the_next_corner(self, data, total):
        """Decreasing curves of any form, with full attention: the optimum is bracketed, and the split is the optimum
        for the total that it would take to complete the jump that did not fit."""
        steps = st.lists(st.floats(0.01, 3), min_size=4, max_size=4)
        curves = []
        for _ in range(data.draw(st.integers(2, 3))):
            square = np.exp(-np.cumsum(data.draw(steps)))
            full = data.draw(st.sampled_from([None, 14, 20]))
            curves.append(HeadCurve((1, 3, 6, 12), tuple(square), full=full))
        found = split_total(curves, total)
        best = brute_force(curves, total)
        assert found.total <= total
        assert best <= found.error * (1 + 1e-9)
        assert found.lower_bound <= best * (1 + 1e-9)
        assert found.error <= uniform_total(curves, total).error * (1 + 1e-12)
        # The split is not further from the optimum than one jump of one head: its error is at most what the lower
        # bound says for a total smaller by the longest jump.
        shorter = total - 20
        if shorter >= len(curves):
            assert found.error <= brute_force(curves, shorter) * (1 + 1e-9)

    def test_a_corner_that_does_not_fit_leaves_its_keys_to_others(self):
        cliff = HeadCurve((1,), (1.0,), full=100)  # nothing helps this head but all of its keys
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
        rising = HeadCurve(
            (1, 10, 100), (1.0, 0.1, 0.2)
        )  # unweighted sampling beside kept keys can look like this
        assert split_total([rising, power(1.0, 1.0)], 1000).n == (10, 16)

    def test_never_worse_than_uniform_and_much_better_when_heads_differ(self):
        curves = [power(10.0**-k, 1.0, (1, 10, 100, 1000)) for k in range(6)]
        split, even = split_total(curves, 600), uniform_total(curves, 600)
        assert even.n == (100,) * 6
        assert split.total == even.total
        assert split.error < 0.4 * even.error

    def test_a_thousand_heads_and_a_million_keys_take_seconds(self):
        rng = np.random.default_rng(0)
        grid = tuple(int(n) for n in np.unique(np.geomspace(1, 16384, 24).round()))
        curves = [power(rng.uniform(0.1, 3), rng.uniform(0.3, 1.1), grid, full=16384) for _ in range(1000)]
        start = time.process_time()
        found = split_total(curves, 10**6)
        assert time.process_time() - start < 10
        assert found.total == 10**6
        assert found.error == pytest.approx(found.lower_bound, rel=1e-9)

    def test_too_small_a_total(self):
        curves = [power(1.0, 1.0)] * 3
        for share in (split_total, uniform_total):
            with pytest.raises(InputError, match="A total of 2 keys is too small: 3 heads need 3"):
                share(curves, 2)
            with pytest.raises(InputError, match="total must be a whole number"):
                share(curves, -1)
            with pytest.raises(InputError, match="There are no curves"):
                share([], 5)


def test_uniform_stops_at_full_attention_and_at_the_end_of_a_curve():
    curves = [power(1.0, 1.0, full=4), power(1.0, 1.0, (1, 8)), power(1.0, 1.0, (1, 100))]
    found = uniform_total(curves, 40)
    assert found.n == (None, 8, 28)
    assert found.total == 40


def test_zero_errors_are_no_trouble():
    curves = [HeadCurve((1, 10), (0.0, 0.0)), HeadCurve((1, 10), (1.0, 0.0))]
    assert split_total(curves, 20).n[1] == 10
    assert least_total(curves, 0.1).n[0] == 1


def test_results_print_and_serialise():
    found = split_total([power(1.0, 1.0, full=3), power(2.0, 1.0)], 10)
    assert repr(found) == f"Allocation(2 heads, {found.total} keys in all, error {found.error:.4g})"
    assert isinstance(found, Allocation)
    assert json.loads(json.dumps(found.to_dict()))["keys"] == list(found.keys)
