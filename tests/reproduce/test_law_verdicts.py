"""Verdicts and figures of the law of the error and of different keys: from runs of their kinds, and from the same made false."""

from dataclasses import replace
from functools import cache

import pytest

from attnlimit.reproduce import Outcome, find
from attnlimit.reproduce.exact import distance
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.different_keys import DifferentKeys
from attnlimit.studies.kinds.error_law import ErrorLaws

AGREES, DIFFERS = Outcome.AGREES, Outcome.DIFFERS


@cache
def laws():
    what = ErrorLaws(
        law={"name": "gaussian", "dim": 2}, head={"name": "identity", "horizon": 2.0}, n=[10, 50], levels=[0.05, 0.5, 0.95]
    )  # fmt: skip
    return Point(0, {"head.horizon": 2.0}, what, what.run(4000, 0, None))


@cache
def keys(number):
    """Three, two of them heavy; six; or forty, which have too many sets."""
    heavy = {"population": "two_heavy", "spread": 6.0} if number == 3 else {"spread": 2.0}
    what = DifferentKeys(keys=number, n=[1, 2] if number == 3 else [1, 2, number // 2], **heavy)
    return Point(number, {"keys": number}, what, what.run(500, 0, None))


def changed(point, **parts):
    return replace(point, result=replace(point.result, **parts))


def outcomes(name, points):
    return [one.outcome for one in find(name).verdicts(points)]


def test_sampled_errors_have_the_exact_law_and_not_the_normal_one():
    """The bound is broken by chance once in twenty seeds; this one does not."""
    point = laws()
    assert outcomes("exact-law", [point]) == [AGREES, AGREES]
    found = point.result
    assert outcomes("exact-law", [changed(point, exact=found.normal)])[0] is DIFFERS
    assert outcomes("exact-law", [changed(point, normal=found.exact)])[1] is DIFFERS
    assert distance(2, 4000) == pytest.approx(0.0234, abs=1e-4)


def test_different_keys_are_exact_and_the_product_is_not():
    points = [keys(3), keys(6), keys(40)]
    assert outcomes("different-keys", points) == [AGREES] * 4
    assert float(keys(3).result.exact[1]) == pytest.approx(0.0012358, rel=1e-4)
    wrong = [
        changed(one, exact=one.result.exact * factor)
        for one, factor in zip(points, (1.00001, 1.1, 1.5), strict=True)
    ]
    assert outcomes("different-keys", wrong)[:3] == [DIFFERS] * 3
    same = [changed(one, product=one.result.exact) for one in points]
    assert outcomes("different-keys", same)[3] is DIFFERS


@pytest.mark.parametrize(("name", "rows"), [("exact-law", 6), ("different-keys", 8)])
def test_figures_and_tables(name, rows):
    made = [laws()] if name == "exact-law" else [keys(3), keys(6), keys(40)]
    found = find(name)
    axes = found.figure(made).axes
    assert len(axes) == len(made)
    assert axes[0].get_legend() is not None
    assert all(ax.get_title(loc="left") and ax.get_xlabel() for ax in axes)
    table = list(found.table(made))
    assert len(table) == rows
    assert all(set(made[0].varies) < set(row) for row in table)
