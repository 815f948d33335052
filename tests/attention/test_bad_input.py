"""Every way to build or ask a head wrongly, and what it says."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import attnlimit as al

DOUBLE = torch.float64


def ones(*shape: int, **kind: object) -> torch.Tensor:
    return torch.ones(*shape, **{"dtype": DOUBLE, **kind})


def elsewhere(law: al.Measure) -> al.Measure:
    """The law as if it lived on another device, of which not every machine has one."""
    law._like = law._like.to("meta")
    return law


HEAD = al.Head(ones(3, 4), ones(2, 3))
PAIR = al.Head(ones(5, 3, 4), ones(5, 2, 3))
LAW = al.Sphere(3)
PROJECTIONS = {"Wq": ones(2, 4), "Wk": ones(2, 3), "Wv": ones(5, 3)}

CASES: dict[str, tuple[Callable[[], object], str]] = {
    # heads
    "vector A": (lambda: al.Head([1.0, 2.0]), r"A must be a matrix, \(\*heads, rows, columns\), got shape \(2,\)"),
    "empty A": (lambda: al.Head(ones(0, 3)), r"A must be a matrix.*got shape \(0, 3\)"),
    "nan in A": (lambda: al.Head([[float("nan")]]), "A has 1 entries that are nan or infinite"),
    "integer A": (lambda: al.Head(torch.ones(2, 2, dtype=torch.int32)), "A must be floating point, got torch.int32"),
    "integer array": (lambda: al.Head(np.ones((2, 2), dtype=np.int64)), "A must be floating point, got torch.int64"),
    "V's dtype": (lambda: al.Head(ones(2, 2), torch.ones(2, 2)), "V has dtype torch.float32, but the rest is torch.float64"),
    "V's device": (lambda: al.Head(ones(2, 2), ones(2, 2, device="meta")), "V is on meta, but the rest is on cpu"),
    "V's heads": (lambda: al.Head(ones(3, 2, 2), ones(4, 2, 2)), r"V is for heads \(4,\), A or Wq for heads \(3,\)"),
    "vector V": (lambda: al.Head(ones(2, 2), ones(2)), r"V must be a matrix"),
    "head dimensions": (lambda: al.Head.from_projections(ones(2, 4), ones(3, 4)), "same head dimension, got 2 and 3 rows"),
    "Wk's heads": (lambda: al.Head.from_projections(ones(6, 2, 4), ones(2, 4)), r"Wk is for heads \(\), A or Wq for heads \(6,\)"),
    "Wk's dtype": (lambda: al.Head.from_projections(ones(2, 4), torch.ones(2, 4)), "Wk has dtype torch.float32"),
    "bq's length": (lambda: al.Head.from_projections(**PROJECTIONS, bq=ones(3)), r"bq must have shape \(\*batch, 2\), got \(3,\)"),
    "bk's length": (lambda: al.Head.from_projections(**PROJECTIONS, bk=ones(3)), r"bk must have shape \(\*batch, 2\)"),
    "bv's length": (lambda: al.Head.from_projections(**PROJECTIONS, bv=ones(3)), r"bv must have shape \(\*batch, 5\)"),
    "bq's heads": (lambda: al.Head.from_projections(**PROJECTIONS, bq=ones(6, 2)), r"bq is for heads \(6,\), the rest for \(\)"),
    "bv without Wv": (lambda: al.Head.from_projections(ones(2, 4), ones(2, 3), bv=ones(3)), "bv was given without Wv"),
    "scale": (lambda: al.Head.from_projections(**PROJECTIONS, scale=0.0), "scale must be a finite number above 0, got 0.0"),
    "kappa": (lambda: HEAD.scaled(-1.0), "kappa must be a finite number above 0, got -1.0"),
    # heads on measures
    "keys": (lambda: HEAD(al.Sphere(4)), r"reads 3-dimensional keys, but Sphere\(dim=4, radius=1\) has dimension 4"),
    "values": (lambda: HEAD(al.Empirical(ones(5, 3), ones(5, 4))), "V has 3 columns, but the values of Empirical.* have dimension 4"),
    "dtype": (lambda: HEAD(al.Sphere(3, dtype=torch.float32)), r"head is torch\.float64 on cpu, Sphere.* is torch\.float32 on cpu: convert"),
    "device": (lambda: HEAD(elsewhere(al.Sphere(3))), r"head is torch\.float64 on cpu, Sphere.* on meta"),
    "hardmax keys": (lambda: HEAD.hardmax(al.Sphere(4)), "reads 3-dimensional keys"),
    "linear keys": (lambda: HEAD.linear()(al.Sphere(4)), "reads 3-dimensional keys"),
    # maps on queries
    "queries": (lambda: HEAD(LAW)(ones(7, 3)), r"queries must have shape \(\*batch, 4\), got \(7, 3\)"),
    "no axis": (lambda: HEAD(LAW)(1.0), r"queries must have shape \(\*batch, 4\), got \(\)"),
    "nan queries": (lambda: HEAD(LAW)(ones(4) * float("nan")), "queries has 4 entries that are nan or infinite out of 4"),
    "integer queries": (lambda: HEAD(LAW)(torch.ones(4, dtype=torch.int64)), "queries must be floating point"),
    "dtype of queries": (lambda: HEAD(LAW)(torch.ones(4)), "queries has dtype torch.float32, but the rest is torch.float64"),
    "device of queries": (lambda: HEAD(LAW)(ones(4, device="meta")), "queries is on meta, but the rest is on cpu"),
    "jacobian": (lambda: HEAD(LAW).jacobian(ones(3)), r"queries must have shape \(\*batch, 4\)"),
    "tokens' queries": (lambda: HEAD(al.Empirical(ones(5, 3)))(ones(3)), r"queries must have shape \(\*batch, 4\)"),
    "direction in A": (lambda: HEAD(LAW).derivative_A(ones(4), ones(4, 3)), r"E must have A's shape \(3, 4\), got \(4, 3\)"),
    "direction in V": (lambda: HEAD(LAW).derivative_V(ones(4), ones(3, 2)), r"E must have V's shape \(2, 3\), got \(3, 2\)"),
    "heads of E in A": (lambda: PAIR(LAW).derivative_A(ones(4), ones(3, 4)), r"E must have A's shape \(5, 3, 4\), got \(3, 4\)"),
    "heads of E in V": (lambda: PAIR(LAW).derivative_V(ones(4), ones(2, 3)), r"E must have V's shape \(5, 2, 3\), got \(2, 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_words(name: str) -> None:
    act, message = CASES[name]
    with pytest.raises(al.InputError, match=message):
        act()


def test_no_limit_is_told_through_the_map() -> None:
    with pytest.raises(
        al.LimitDoesNotExist, match=r"a = A x = \[2\.0\] \(1 of 2 queries\).*head\.scaled\(kappa\)"
    ):
        al.Head([[2.0]])(al.Laplace(1))([[0.1], [1.0]])
    with pytest.raises(al.LimitDoesNotExist, match=r"n-token attention does not settle.*n\^\(1/3\)"):
        al.Head([[2.0]])(al.StudentT(1, df=3.0)).jacobian([0.1])
