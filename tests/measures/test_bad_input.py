"""Every way to build or ask a measure wrongly, and what it says."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import attnlimit as al

DOUBLE = torch.float64
ONES = torch.ones(3, 2, dtype=DOUBLE)


def elsewhere(law: al.Measure) -> al.Measure:
    """The law as if it lived on another device, of which not every machine has one."""
    law._like = law._like.to("meta")
    return law


CASES: dict[str, tuple[Callable[[], object], str]] = {
    # tokens
    "one axis": (lambda: al.Empirical([1.0, 2.0]), r"tokens must have shape \(n, d\), got \(2,\)"),
    "no tokens": (lambda: al.Empirical(ONES[:0]), r"tokens are empty \(shape \(0, 2\)\): attention needs"),
    "no coordinates": (lambda: al.Empirical(ONES[:, :0]), r"tokens are empty \(shape \(3, 0\)\)"),
    "nan": (lambda: al.Empirical([[1.0, float("nan")]]), "tokens has 1 entries that are nan or infinite out of 2"),
    "inf": (lambda: al.Empirical(ONES / 0), "tokens has 6 entries that are nan or infinite out of 6"),
    "integers": (lambda: al.Empirical(torch.ones(3, 2, dtype=torch.int64)), r"floating point, got torch\.int64"),
    "ragged": (lambda: al.Empirical([[1.0], [1.0, 2.0]]), "tokens must be numbers in a rectangular array"),
    "text": (lambda: al.Empirical(np.array([["a"]])), "tokens must be an array of numbers, got dtype <U1"),
    "value rows": (lambda: al.Empirical(ONES, ONES[:2]), r"values must have shape \(3, dv\), one row a token"),
    "value dtype": (lambda: al.Empirical(ONES, ONES.float()), "values has dtype torch.float32, but the rest is torch.float64"),
    "value device": (lambda: al.Empirical(ONES, ONES.to("meta")), r"values is on meta, but the rest is on cpu: move one"),
    # weights
    "negative weights": (lambda: al.Empirical(ONES, weights=[0.5, 0.75, -0.25]), "must not be negative, got a least one of -0.25"),
    "weights of sum two": (lambda: al.Empirical(ONES, weights=[1.0, 0.5, 0.5]), "weights must sum to one, got 2: divide them"),
    "nearly one": (lambda: al.Empirical(ONES, weights=[0.3, 0.3, 0.399999]), "weights must sum to one, got 0.999999"),
    "too few weights": (lambda: al.Empirical(ONES, weights=[0.5, 0.5]), r"weights must have shape \(3,\), got \(2,\)"),
    # Gaussians
    "no dimension": (lambda: al.Gaussian(cov=2.0), r"Gaussian\(cov=number\) has no dimension: give dim=, or a mean"),
    "indefinite": (lambda: al.Gaussian(cov=[[1.0, 2.0], [2.0, 1.0]]), "cov is not positive semi-definite: its least eigenvalue is -1 "),
    "negative variance": (lambda: al.Gaussian(cov=[1.0, -0.5]), "cov is not positive semi-definite: its least variance is -0.5"),
    "asymmetric": (lambda: al.Gaussian(cov=[[1.0, 0.5], [0.0, 1.0]]), r"cov is not symmetric: it differs from its transpose by up to 0\.5"),
    "rectangular": (lambda: al.Gaussian(cov=ONES), r"a vector of length 2 or a 2×2 matrix, got shape \(3, 2\)"),
    "mean and cov": (lambda: al.Gaussian([0.0, 0.0], [1.0, 1.0, 1.0]), r"a vector of length 2 or a 2×2 matrix, got shape \(3,\)"),
    "mean's shape": (lambda: al.Gaussian([[0.0, 0.0]], 1.0), r"mean must have shape \(2,\), got \(1, 2\)"),
    "mean against dim": (lambda: al.Gaussian([0.0, 0.0], 1.0, dim=3), r"mean must have shape \(\*batch, 3\), got \(2,\)"),
    "mean's dtype": (lambda: al.Gaussian(torch.zeros(2), torch.ones(2, dtype=DOUBLE)), "mean has dtype torch.float32, but the rest is torch.float64"),
    "mean's device": (lambda: al.Gaussian(ONES[0].to("meta"), ONES[1]), "mean is on meta, but the rest is on cpu"),
    "infinite mean": (lambda: al.Gaussian([0.0, float("inf")], 1.0), "mean has 1 entries that are nan or infinite"),
    # mixtures
    "no parts": (lambda: al.Mixture([], []), "Mixture needs at least one part, got none"),
    "parts of two dimensions": (lambda: al.Mixture([0.5, 0.5], [al.Box(2), al.Box(3)]), "must share dimension, dtype and device: Box"),
    "parts of two dtypes": (lambda: al.Mixture([0.5, 0.5], [al.Box(2), al.Box(2, dtype=torch.float32)]), "must share dimension, dtype and device"),
    "parts on two devices": (lambda: al.Mixture([0.5, 0.5], [al.Box(2), elsewhere(al.Box(2))]), "must share dimension, dtype and device"),
    "part with values": (lambda: al.Mixture([1.0], [al.Empirical(ONES, ONES[:, :1])]), "over tokens alone, but Empirical.* has values of its own"),
    "mixture weights": (lambda: al.Mixture([0.5, 0.6], [al.Box(2), al.Ball(2)]), "weights must sum to one, got 1.1"),
    # parameters
    "radius": (lambda: al.Sphere(3, radius=0.0), "radius must be a finite number above 0, got 0.0"),
    "infinite radius": (lambda: al.Ball(3, radius=float("inf")), "radius must be a finite number above 0, got inf"),
    "half width": (lambda: al.Box(3, half_width=-1.0), "half_width must be a finite number above 0, got -1.0"),
    "scale": (lambda: al.Laplace(3, scale=float("nan")), "scale must be a finite number above 0, got nan"),
    "df": (lambda: al.StudentT(3, df=0.0), "df must be a finite number above 0, got 0.0"),
    "dim": (lambda: al.Sphere(0), "dim must be a whole number of at least 1, got 0"),
    "dtype": (lambda: al.Sphere(3, dtype=torch.int32), "dtype must be a floating dtype of torch, got torch.int32"),
    # questions
    "dimension of a": (lambda: al.Sphere(3).cgf([1.0, 2.0]), r"a must have shape \(\*batch, 3\), got \(2,\): the last axis"),
    "scalar a": (lambda: al.Sphere(1).cgf(1.0), r"a must have shape \(\*batch, 1\), got \(\)"),
    "nan in a": (lambda: al.Sphere(1).tilted_mean([float("nan")]), "a has 1 entries that are nan or infinite"),
    "dtype of a": (lambda: al.Sphere(1).tilted_cov(torch.ones(1)), "a has dtype torch.float32, but the rest is torch.float64.*Convert one"),
    "device of a": (lambda: al.Sphere(1).top(torch.ones(1, dtype=DOUBLE, device="meta")), "a is on meta, but the rest is on cpu"),
    "integer a": (lambda: al.Sphere(1).in_domain(torch.ones(1, dtype=torch.int64)), "a must be floating point"),
    "n = 0": (lambda: al.Sphere(3).sample(0, generator=0), "n must be a whole number of at least 1, got 0"),
    "n = 0 of tokens": (lambda: al.Empirical(ONES).sample(0, generator=0), "n must be a whole number of at least 1, got 0"),
    "n < 0 of a mixture": (lambda: al.Mixture([1.0], [al.Box(2)]).sample(-1, generator=0), "n must be a whole number of at least 1, got -1"),
    "generator": (lambda: al.Sphere(3).sample(2, generator=True), r"generator must be a torch\.Generator or a seed"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_words(name: str) -> None:
    act, message = CASES[name]
    with pytest.raises(al.InputError, match=message):
        act()


def test_input_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="tokens must have shape"):
        al.Empirical([1.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_forgiven(dtype: torch.dtype) -> None:
    """Weights that sum to one up to rounding, and covariances that are semi-definite up to rounding."""
    tokens = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)
    weights = tokens[:, 0].exp() / tokens[:, 0].exp().sum()
    assert abs(float(al.Empirical(tokens, weights=weights).weights.double().sum()) - 1) < 1e-6
    thin = tokens[:4]
    law = al.Gaussian(cov=thin.T @ thin)  # of rank 4 in 8 dimensions
    assert law.sample(3, generator=0).tokens.dtype == dtype


def test_numpy_arrays_and_lists_are_taken() -> None:
    array = np.arange(6, dtype=np.float64).reshape(3, 2)[::-1]
    array.flags.writeable = False
    law = al.Empirical(array, weights=np.array([0.25, 0.25, 0.5]))
    assert torch.equal(law.tokens, torch.tensor([[4.0, 5], [2, 3], [0, 1]], dtype=DOUBLE))
    assert al.Gaussian(np.zeros(2, dtype=np.float32)).dtype == torch.float32
    assert al.Gaussian([0, 1], 2).mean.dtype == DOUBLE
