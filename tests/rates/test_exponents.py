"""The exponents against direct minimisation, and against attention itself by quadrature."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlimit import (
    Box,
    FromSampler,
    Gaussian,
    Head,
    Laplace,
    Mixture,
    Rademacher,
    Sphere,
    StudentT,
    curve,
)
from attnlimit.errors import InputError, LimitDoesNotExist, NotKnown
from attnlimit.rates import exponents, horizon, local_slopes, rates

B = np.linspace(0.0, 1.5, 1_500_001)


def typical(b: np.ndarray) -> np.ndarray:
    """e(b): the error of a typical draw is n^{−e}."""
    return np.where(b <= 0.5, 0.5 - b**2, np.where(b <= 1, (1 - b) ** 2, 0))


def square(b: np.ndarray) -> np.ndarray:
    """f(b): the mean square error is n^{−f}."""
    return np.where(b**2 <= 1 / 3, 1 - 2 * b**2, np.where(b <= 1, (1 - b**2) ** 2 / (4 * b**2 + 1e-300), 0))


@pytest.mark.parametrize("H", [0.1, 0.3, 0.5, 0.7, 0.75, 0.8, 0.99, 1.0, 1.01, 1.5, 2.0, 3.0, 10.0])
def test_exponents_minimise_error_times_frequency(H: float) -> None:
    """A grid of b with step 1e-6 finds each minimum to 1e-9 (errors at a minimum are of second order)."""
    frequency = B**2 / H**2
    found = exponents(H)
    assert found.mean == pytest.approx((typical(B) + frequency).min(), abs=1e-9)
    assert found.mean_rms == pytest.approx((square(B) / 2 + frequency).min(), abs=1e-9)
    assert found.rms == pytest.approx((square(B) + frequency).min() / 2, abs=1e-9)
    assert found.bound == pytest.approx((np.maximum(0.5 - B**2, 0) + frequency).min(), abs=1e-6)
    assert found.paper == pytest.approx(1 / (2 * (1 + H**2)), rel=1e-14)


@given(st.floats(0, 1e6))
def test_order(H: float) -> None:
    """A root mean square is above a mean, and all beat what is published; 1e-12 is rounding."""
    r = exponents(H)
    chain = [0.0, r.paper, r.rms, r.mean_rms, r.mean, 0.5]
    assert all(low <= high * (1 + 1e-12) for low, high in pairwise(chain))
    assert r.paper <= r.bound * (1 + 1e-12)
    assert r.bound <= r.mean_rms * (1 + 1e-12)


def test_ends_and_no_cancellation() -> None:
    assert exponents(0.0).to_dict() | {"note": "", "phase": ""} == {
        "horizon": 0.0, "paper": 0.5, "bound": 0.5, "mean": 0.5, "mean_rms": 0.5, "rms": 0.5,
        "note": "", "bounded": False, "phase": "",
    }  # fmt: skip
    far = exponents(math.inf)
    assert (far.paper, far.bound, far.mean, far.mean_rms, far.rms) == (0, 0, 0, 0, 0)
    assert exponents(1e200).rms == 0
    large = exponents(1e9)  # to first order 1/H² and 1/(2H²), lost by √(1 + 8/H²) − 1 in double precision
    assert large.mean_rms == pytest.approx(1e-18, rel=1e-12)
    assert large.rms == pytest.approx(0.5e-18, rel=1e-12)


def test_phases_and_words() -> None:
    assert exponents(0.7).phase == "averaging"
    assert exponents(0.8).phase.startswith("transition")
    assert exponents(1.0).phase.startswith("transition")
    assert exponents(1.1).phase == "few keys dominate"
    assert repr(exponents(1.1)).startswith("Rates(horizon=1.1, paper=0.2262")


def mean_square(s: np.ndarray, n: np.ndarray) -> np.ndarray:
    """E‖Γ_n‖² for a value of unit variance independent of the score, w = e^{sg}: ∫ t n E[w²e^{−tw}] φ^{n−1} dt.

    Trapezoids in g and log t, written for this test alone; shape (len(s), len(n)).
    """
    g = np.arange(-8.0, 15.0, 0.05)
    density = 0.05 * np.exp(-(g**2) / 2) / math.sqrt(2 * math.pi)
    out = np.empty((len(s), len(n)))
    for i, spread in enumerate(s):
        log_t = np.arange(-10 * spread - 46, 6 * spread + 6, 0.25)
        log_tw = np.minimum(log_t[:, None] + spread * g, 7.0)  # beyond, e^{−tw} is 0
        tw = np.exp(log_tw)
        log_phi = np.log1p(-np.minimum(-np.expm1(-tw) @ density, 1 - 1e-16))
        inner = np.exp(2 * log_tw - tw) @ density
        out[i] = [0.25 * np.sum(inner * size * np.exp((size - 1) * log_phi)) for size in n]
    return out


def test_quadrature_of_this_file() -> None:
    """Known values for s = 0.5 and 2, to their six digits."""
    n = np.array([10.0, 1e3, 1e6, 1e9])
    truth = [[0.123368, 0.00128345, 1.28402e-6, 1.28403e-9], [0.390120, 0.0290343, 5.43149e-5, 5.45978e-8]]
    assert mean_square(np.array([0.5, 2.0]), n) == pytest.approx(np.array(truth), rel=1e-5)


@pytest.mark.parametrize("H", [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0])
def test_attention_approaches_the_exponents(H: float) -> None:
    """The local exponents of exact curves, averaged over queries with s = H|g|, near their limit at n = 10^12.

    Corrections are of order 1/log n: within 0.02 of the limit, nearer than at n = 10^4, and above `paper`.
    """
    n = [10**4, 2 * 10**4, 10**12, 2 * 10**12]
    x, weight = np.polynomial.legendre.leggauss(40)
    g, weight = 5 * (x + 1), 5 * weight  # on [0, 10]
    weight = weight * np.exp(-(g**2) / 2) * math.sqrt(2 / math.pi)
    squares = mean_square(H * g, np.array(n, dtype=float))
    curves = np.stack([np.sqrt(weight @ squares), weight @ np.sqrt(squares)])
    local_exponent = local_slopes(n, curves)
    known = exponents(H)
    for row, limit in zip(local_exponent, (known.rms, known.mean_rms), strict=True):
        assert abs(float(row[-1]) - limit) < 0.02
        assert abs(float(row[-1]) - limit) <= abs(float(row[0]) - limit)
        assert float(row[-1]) > known.paper


HEAD = Head([[2.0, 0.0], [0.0, 0.5]])


def test_gaussian_law_and_several_heads() -> None:
    law = Gaussian(cov=1.0, dim=2)
    assert rates(HEAD, law).to_dict() == exponents(2.0).to_dict()
    both = rates(Head(torch.stack([HEAD.A, 0.25 * HEAD.A])), law)
    assert torch.as_tensor(both.rms).tolist() == [exponents(2.0).rms, exponents(0.5).rms]
    assert both.phase == ["few keys dominate", "averaging"]
    assert both.to_dict()["paper"] == pytest.approx([0.1, 0.4])
    assert repr(both) == "Rates(2 heads, horizon 0.5 to 2)"


@pytest.mark.parametrize(
    "law", [Sphere(2, radius=3.0), Box(2, 4.0), Gaussian(cov=3.0, dim=2).sample(50, generator=0)]
)
def test_bounded_tokens_average_in_the_end(law: Sphere) -> None:
    found = rates(HEAD, law)
    H = horizon(HEAD, law)
    assert H > 1
    assert (found.mean, found.mean_rms, found.rms) == (0.5, 0.5, 0.5)
    assert (found.paper, found.bound) == (exponents(H).paper, exponents(H).bound)
    assert "see its exact curve" in found.note
    assert found.phase == "averaging in the end"


def test_bounded_tokens_need_not_follow_gaussian_exponents_before() -> None:
    """Signs ±1 with H = 3: the exact curve falls faster than 1/n for a while, then like n^{−1/2}."""
    found = curve(Head([[3.0]]), Rademacher(1), [7, 14, 20, 500, 1000]).local_slopes()
    assert float(found[1]) > 3 * exponents(3.0).mean
    assert float(found[1]) > 2
    assert float(found[-1]) == pytest.approx(0.5, abs=0.02)


def test_bounded_tokens_have_slope_half() -> None:
    """Two keys ±r: the error of a query is of order n^{−1/2} for n ≫ 1/p, p the weaker key's weight, by exact sums."""
    r, n = 2.0, [2000, 4000]
    x = torch.tensor([-r, r]).double()  # Γ(x) = r tanh(r x)
    curves = []
    for size in n:
        k = torch.arange(size + 1).double()
        log_p = (
            torch.lgamma(k.new_tensor(size + 1.0))
            - torch.lgamma(k + 1)
            - torch.lgamma(size - k + 1)
            - size * math.log(2)
        )
        up, down = k * (r * x[:, None]).exp(), (size - k) * (-r * x[:, None]).exp()
        error = r * (up - down) / (up + down) - r * torch.tanh(r * x)[:, None]
        curves.append((log_p.exp() * error.square()).sum(-1).mean().sqrt())
    law = Box(1, r)  # any law on [−r, r]
    found = local_slopes(n, torch.stack(curves))
    assert found.tolist() == pytest.approx([rates(Head([[1.0]]), law).rms] * 2, abs=0.01)


def test_bounded_queries_of_gaussian_keys() -> None:
    found = rates(HEAD, Gaussian(cov=1.0, dim=2), queries=Sphere(2, radius=9.0))
    assert found.rms == 0.5
    assert found.bounded


def test_mixtures_use_their_parts() -> None:
    """Far clusters make the covariance large, but the exponents are those of the widest pair of parts."""
    parts = [Gaussian(mean=[-9.0, 0.0], cov=0.25), Gaussian(mean=[9.0, 0.0], cov=0.5)]
    found = rates(HEAD, Mixture([0.5, 0.5], parts))
    assert found.horizon == pytest.approx(1.0)
    assert horizon(HEAD, Mixture([0.5, 0.5], parts)) > 100
    assert "not that of the covariance" in found.note
    same = Mixture([0.25, 0.75], [Gaussian(cov=1.0, dim=2)] * 2)
    assert rates(HEAD, same).rms == pytest.approx(exponents(2.0).rms)
    partly = Mixture([0.5, 0.5], [Sphere(2, radius=20.0), parts[1]])
    assert rates(HEAD, partly).horizon == pytest.approx(1.0)
    never = Mixture([1.0, 0.0], [Sphere(2), parts[1]])
    assert rates(HEAD, never).rms == 0.5


def test_other_laws_say_that_nothing_is_proved() -> None:
    law = FromSampler(lambda u: u.square(), dim=1, points=256, scrambles=2)
    found = rates(Head([[45.0]]), law)
    assert "not proved for this law" in found.note
    assert found.rms == exponents(found.horizon).rms


def test_refusals() -> None:
    with pytest.raises(LimitDoesNotExist, match=r"No rate: StudentT.*unbounded queries leave it"):
        rates(HEAD, StudentT(2, df=5.0))
    with pytest.raises(LimitDoesNotExist, match="No rate: Laplace"):
        rates(HEAD, Laplace(2))
    with pytest.raises(NotKnown, match="depends on tails heavier than Gaussian"):
        rates(HEAD, Laplace(2), queries=Sphere(2))
    with pytest.raises(NotKnown, match="depends on tails heavier than Gaussian"):
        rates(HEAD, Gaussian(cov=1.0, dim=2), queries=Laplace(2))
    assert rates(Head([[0.0]]), Laplace(1)).rms == 0.5  # all scores are equal: plain averages
    for wrong in (-1.0, math.nan, torch.tensor([1.0, -2.0])):
        with pytest.raises(InputError, match="horizon must be a number of at least 0"):
            exponents(wrong)
