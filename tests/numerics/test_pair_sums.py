"""Products of sums over the same keys, over powers of both sums of weights: against every draw of three keys."""

from __future__ import annotations

import itertools

import pytest
import torch

from attnlimit.numerics.pair_sums import Form, pair_sums
from attnlimit.numerics.two_queries import PairAtoms

F64 = {"dtype": torch.float64}
MASS = torch.tensor([0.2, 0.5, 0.3], **F64)
SCORES = torch.tensor([[0.3, -0.9, 0.0], [-0.5, 0.1, 0.7]], **F64)
ERRORS = torch.tensor([[[1.0, -0.4], [0.3, 0.8], [-1.2, 0.5]], [[0.2, 0.9], [-0.7, 0.1], [0.4, -1.1]]], **F64)
ATOMS = PairAtoms(SCORES[0], SCORES[1][:, None], MASS[:, None], *ERRORS[:, :, None])


def form(factors: tuple[str, ...], share: float) -> Form:
    indexed = [one for one in factors if len(one) == 2]
    numbers = torch.zeros([2] * len(indexed), **F64)
    numbers[tuple(int(one[1]) for one in indexed)] = share
    return numbers, "".join(one[0] for one in indexed), "".join(one for one in factors if len(one) == 1)


def by_enumeration(factors: tuple[str, ...], n: int) -> float:
    mean = 0.0
    w, other = SCORES.exp()
    each = {"P": w * w, "Q": other * other, "X": w * other}
    each |= {f"p{i}": w * ERRORS[0, :, i] for i in range(2)}
    each |= {f"q{i}": other * ERRORS[1, :, i] for i in range(2)}
    powers = {"p": (1, 0), "q": (0, 1), "P": (2, 0), "Q": (0, 2), "X": (1, 1)}
    k, l = (sum(powers[one[0]][side] for one in factors) for side in (0, 1))  # noqa: E741
    for drawn in itertools.product(range(3), repeat=n):
        some = list(drawn)
        value = MASS[some].prod() / (w[some].sum() ** k * other[some].sum() ** l)
        for one in factors:
            value = value * each[one][some].sum()
        mean += float(value)
    return mean


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "factors",
    [("X",), ("p0", "q1"), ("p1", "q0", "q1"), ("X", "q0"), ("Q", "p1"), ("p0", "p1", "q0", "q1"), ("p0", "p0", "q1", "q1"),
     ("X", "p0", "q1"), ("Q", "p0", "p1"), ("P", "q0", "q0"), ("P", "Q"), ("X", "X")],
)  # fmt: skip
def test_against_every_draw(factors: tuple[str, ...], n: int) -> None:
    found = pair_sums(ATOMS, [form(factors, 2.0)], [n, 1000], 0.3)
    assert float(found[0]) == pytest.approx(2 * by_enumeration(factors, n), rel=1e-5, abs=1e-7)


def test_terms_add_up() -> None:
    terms = [form(("X", "X"), 0.5), form(("p0", "q1"), -2.0), form(("p0", "q0"), 0.7)]
    apart = sum(pair_sums(ATOMS, [one], [4], 0.3) for one in terms)
    torch.testing.assert_close(pair_sums(ATOMS, terms, [4], 0.3), apart)
