"""An error curve: between its points, its least n, its fits, its record."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from attnlimit.errors import InputError
from attnlimit.rates import ErrorCurve


def curve_of(n, error, **given) -> ErrorCurve:
    return ErrorCurve(tuple(n), torch.tensor(error, dtype=torch.float64), **given)


@st.composite
def curves(draw: st.DrawFn) -> dict[str, Any]:
    n = sorted(draw(st.sets(st.integers(0, 1000), min_size=1, max_size=8)))
    error = draw(st.lists(st.floats(0, 10), min_size=len(n), max_size=len(n)))
    full = draw(st.none() | st.integers(n[-1] + 1, 2000))
    return {"n": n, "error": error, "full": full}


@given(curves(), st.floats(0, 10))
def test_least_is_the_first_n_that_is_enough(given: dict[str, Any], target: float) -> None:
    """Against trying every n."""
    curve = curve_of(**given)
    last = curve.full or curve.n[-1]
    enough = [n for n in range(curve.n[0], last + 1) if curve.at(n) <= target]
    found = curve.least(target)
    if found is None:
        assert not enough
        return
    assume(
        all(abs(curve.at(n) - target) > 1e-9 for n in (found - 1, found) if n >= curve.n[0])
        or found in curve.n
    )
    assert found == enough[0]


@given(curves(), st.integers(0, 2000))
def test_between_points_the_error_lies_between_them(given: dict[str, Any], n: int) -> None:
    curve = curve_of(**given)
    assume(n >= curve.n[0])
    ends = [*curve.error.tolist(), *([0.0] if curve.full else [])]
    assert min(ends) - 1e-9 <= curve.at(n) <= max(ends) + 1e-9
    if n in curve.n:
        assert curve.at(n) == float(curve.error[curve.n.index(n)])


def test_averages_are_interpolated_exactly_with_and_without_replacement() -> None:
    """σ²/n, and σ²(1/n − 1/R) of n different ones of R."""
    average = curve_of((1, 50, 1000), [n**-0.5 for n in (1, 50, 1000)])
    different = curve_of((1, 50), [(1 / n - 1 / 400) ** 0.5 for n in (1, 50)], full=400)
    for n in (2, 7, 49, 51, 300):
        assert average.at(n) == pytest.approx(n**-0.5, rel=1e-12)
        assert different.at(n) == pytest.approx((1 / n - 1 / 400) ** 0.5, rel=1e-12)
    assert different.at(400) == different.at(10**6) == 0.0
    assert average.least(0.1) == 100
    assert different.least(0.1) == 80
    assert average.least(1e-3) is None
    assert average.at(10**6) == average.at(1000)


def test_nothing_drawn_is_joined_by_a_straight_line() -> None:
    curve = curve_of((0, 4), [1.0, 0.5])
    assert curve.at(1) == pytest.approx(math.sqrt(1 - 0.75 / 4))
    assert curve.least(0.8) == 2


def test_keys_read_are_a_straight_line() -> None:
    curve = curve_of((1, 3, 9), [3.0, 2.0, 1.0], keys=torch.tensor([5.0, 7.0, 10.0]))
    assert [curve.keys_at(n) for n in (1, 2, 6, 9, 20)] == [5, 6, 8.5, 10, 10]
    assert curve_of((1, 3), [1.0, 0.5]).keys_at(2) == 2


def test_fit_takes_replicates_standard_errors_or_the_curve() -> None:
    n = (10, 100, 1000)
    g = torch.Generator().manual_seed(0)
    rows = torch.tensor(n, dtype=torch.float64) ** -0.5 * (1 + 0.1 * torch.rand(40, 3, generator=g).double())
    measured = ErrorCurve(n, rows.mean(0), statistic="mean", rows=rows)
    assert measured.fit().replicates == 40
    assert measured.fit().exponent == pytest.approx(0.5, abs=0.02)
    known = curve_of(n, [n_**-0.5 for n_ in n], standard_error=torch.tensor([1e-3, 1e-4, 1e-5]))
    assert known.fit().exponent == pytest.approx(0.5)
    assert "standard errors" in known.fit().method
    assert curve_of(n, [1 / n_ for n_ in n]).local_slopes().tolist() == pytest.approx([1, 1, 1])


@given(curves())
def test_record_and_pickle_give_it_back(given: dict[str, Any]) -> None:
    curve = curve_of(**given)
    for copy in (ErrorCurve.from_dict(curve.to_dict()), pickle.loads(pickle.dumps(curve))):
        assert copy.to_dict() == curve.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": [1, 1]}, "must increase"),
        ({"n": 3}, "n must be several, each a whole number, got 3"),
        ({"n": None}, "n must be several, each a whole number, got None"),
        ({"n": [-1, 2]}, "whole numbers of at least 0"),
        ({"n": []}, "error has 2 entries along 'n', but n has 0"),
        ({"error": [1.0]}, "error has 1 entries along 'n', but n has 2"),
        ({"error": [1.0, -1.0]}, "finite and at least 0"),
        ({"error": [1.0, math.inf]}, "finite and at least 0"),
        ({"error": ["a", 1]}, "must be numbers"),
        ({"colour": "red"}, "has the fields"),
    ],
)
def test_records_that_cannot_be_read(change: dict[str, object], message: str) -> None:
    record = curve_of((1, 2), [1.0, 0.5]).to_dict() | change
    with pytest.raises(InputError, match=message):
        ErrorCurve.from_dict(record)


def test_no_error_is_no_target() -> None:
    with pytest.raises(InputError, match="error must be a number, got nan"):
        ErrorCurve((1, 2), torch.tensor([1.0, 0.5])).least(math.nan)


def test_what_a_curve_does_not_know() -> None:
    curve = curve_of((4, 8), [1.0, 0.5])
    with pytest.raises(InputError, match="starts at n = 4"):
        curve.at(3)
    with pytest.raises(InputError, match="relative to what"):
        _ = curve.relative


def test_slopes_of_a_curve_that_starts_at_no_keys() -> None:
    assert curve_of((0, 1, 10, 100), [1, 1, 0.1, 0.01]).local_slopes().tolist() == pytest.approx([0, 1, 1, 1])
    for n in ((0,), (3,)):
        assert curve_of(n, [1.0]).local_slopes().isnan().all()
