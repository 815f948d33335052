"""Keys with heavy tails: exact curves against draws, and what they tend to against stable laws and Poisson–Dirichlet weights."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

import attnlimit as al
from attnlimit.numerics.heavy_tails import largest_of_poisson_dirichlet, stable_typical

ONE = al.Head([[1.0]])
LAW = al.Laplace(1)


def drawn(a: float, n: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of n Laplace keys at score a·y, and their weights."""
    y = np.random.default_rng(n).laplace(size=(count, n))
    w = np.exp(a * y - (a * y).max(1, keepdims=True))
    p = w / w.sum(1, keepdims=True)
    return (p * y).sum(1), p


@pytest.mark.parametrize("a", [0.55, 0.8, 1.25, 3.0])
def test_weights_and_outputs_equal_those_of_draws(a: float) -> None:
    """Twelve comparisons, each beyond 5 standard errors with probability 6e-7, of 40,000 draws of 10 keys."""
    found = al.heavy_tails(ONE, LAW, [a], 10)
    output, p = drawn(a, 10, 40_000)
    for exact, values in (
        (found.sum_squares, (p**2).sum(1)),
        (found.largest, p.max(1)),
        (found.output, output),
    ):
        assert exact is not None
        assert abs(float(exact[0]) - values.mean()) < 5 * values.std() / 200
    assert (found.rms is None) == (a > 1)
    if found.rms is not None:
        square = (output - 2 * a / (1 - a**2)) ** 2
        assert abs(float(found.rms[0]) ** 2 - square.mean()) < 5 * square.std() / 200


def test_the_law_of_the_error_past_the_central_limit() -> None:
    """Of 20,000 draws of 300 keys, shares at the median of |error| and at both ends of the interval are beyond 5 standard errors with
    probability 2e-6. The stable law is not there yet, and is seen not to be."""
    a, n, count = 2 / 3, 300, 20_000
    found = al.heavy_tails(ONE, LAW, [a], [n])
    error = drawn(a, n, count)[0] - 2 * a / (1 - a**2)
    assert found.typical is not None
    assert found.interval is not None
    assert found.stable is not None
    low, high = found.interval[:, 0].tolist()
    for share, seen in (
        (0.5, abs(error) <= float(found.typical[0])),
        (0.05, error <= low),
        (0.95, error <= high),
    ):
        assert abs(seen.mean() - share) < 5 * math.sqrt(share * (1 - share) / count)
    assert abs((abs(error) <= float(found.stable[0])).mean() - 0.5) > 0.05


def test_the_stable_law_is_reached_slowly() -> None:
    """The error over the stable law's is 1 + O(1/log n), and beyond n = 10^6 falls with the exponent 1 − 1/α and a logarithm."""
    found = al.heavy_tails(ONE, LAW, [2 / 3], [10**6, 10**12])
    assert found.typical is not None
    assert found.stable is not None
    off = (found.typical / found.stable - 1).tolist()
    assert 0 < off[1] < 0.1
    assert off[1] / off[0] == pytest.approx(math.log(10**6) / math.log(10**12), abs=0.15)
    assert found.exponent == pytest.approx(1 / 3)
    assert found.limit_exists


def test_the_mean_square_falls_more_slowly_than_the_typical_error() -> None:
    """E‖Γ_n − Γ‖² is n^{−(α−1)} log² n, up to corrections that fall like 1/log n; the exponent 2(1 − 1/α) of the typical error's square is refused."""
    for alpha in (1.25, 1.5, 1.75):
        sizes = [10**8, 10**12]
        square = al.exact_error(ONE, LAW, sizes, [[1 / alpha]]).mean_square[0].tolist()
        log = [math.log(n) ** 2 for n in sizes]
        change, other = (
            square[1] / square[0] * log[0] / log[1] * 10 ** (4 * e) for e in (alpha - 1, 2 - 2 / alpha)
        )
        assert change == pytest.approx(1, abs=0.25)
        assert other > 2.2


def test_stable_median_by_sums_of_pareto_variables() -> None:
    """Of 4,000 sums of 4,000 variables with P(w > t) = t^−1.2, the share below the median is off by noise (0.04 at 5 standard
    errors) and by what 4,000 leave."""
    n, alpha = 4000, 1.2
    draws = np.random.default_rng(1).random((4000, n))
    sums = ((1 - draws) ** (-1 / alpha)).sum(1)
    z = (sums - n * alpha / (alpha - 1)) / n ** (1 / alpha)
    assert abs((abs(z) <= stable_typical(alpha)).mean() - 0.5) < 0.06
    assert abs((abs(z) <= 1.3 * stable_typical(alpha)).mean() - 0.5) > 0.06


def test_poisson_dirichlet_weights() -> None:
    """n → ∞ against points Γ_i^{−1/α} of a Poisson process: 20,000 draws, 5 standard errors."""
    alpha = 0.5
    points = np.random.default_rng(3).exponential(size=(20_000, 400)).cumsum(1) ** (-1 / alpha)
    p = points / points.sum(1, keepdims=True)  # what is beyond 400 points weighs 1/400 of the largest
    assert abs(p[:, 0].mean() - largest_of_poisson_dirichlet(alpha)) < 5 * p[:, 0].std() / 141 + 2.5e-3
    found = al.heavy_tails(ONE, LAW, [1 / alpha], [10**9])
    assert found.sum_squares is not None
    assert found.largest is not None
    assert float(found.sum_squares[0]) == pytest.approx(1 - alpha, abs=1e-4)
    assert float(found.largest[0]) == pytest.approx(found.largest_limit, abs=5e-4)
    assert found.sum_squares_limit == 1 - alpha
    assert found.exponent == 0
    assert (largest_of_poisson_dirichlet(0.0), largest_of_poisson_dirichlet(1.0)) == (1.0, 0.0)


def test_outputs_past_the_limit_grow_like_log_n() -> None:
    found = al.heavy_tails(ONE, LAW, [1.6], [10**3, 10**6, 10**9])
    assert found.output is not None
    assert found.output_far is not None
    gap = (found.output - found.output_far).abs().tolist()
    assert gap[0] > gap[1] > gap[2]
    assert gap[2] < 2e-3
    assert float(found.output.diff()[-1]) == pytest.approx(math.log(1000), rel=1e-3)


def test_the_tail_of_two_coordinates() -> None:
    """P(aᵀy > t) of two Laplace coordinates by partial fractions; the second coordinate given a large score by quadrature."""
    a = torch.tensor([-0.7, 0.5], dtype=torch.float64)
    tail = al.Laplace(2).tail(a)
    assert tail is not None
    assert tail.nodes is None
    assert tail.index == pytest.approx(1 / 0.7)
    assert tail.constant == pytest.approx(0.49 / (0.49 - 0.25) / 2)
    score = 80.0

    def density(y: float) -> float:  # of y₂, with y₁ as the score has it
        return math.exp(-abs(y) - abs((score - 0.5 * y) / 0.7) + score / 0.7)

    mass, mean = (
        quad(lambda y, k=k: y**k * density(y), -60, 160, points=[0, 160], limit=400)[0] for k in (0, 1)
    )
    y2 = mean / mass
    expected = torch.tensor([-(score - 0.5 * y2) / 0.7, y2], dtype=torch.float64)
    torch.testing.assert_close(tail.slope * score + tail.offset, expected, rtol=1e-6, atol=1e-6)
    head = al.Head(torch.eye(2, dtype=torch.float64))
    found = al.heavy_tails(head, al.Laplace(2), a, [10**6])
    assert found.typical is None
    assert found.stable is not None
    assert found.method == "asymptotic"
    tie = al.Laplace(2).tail(torch.tensor([0.5, -0.5]).double())
    assert tie is not None
    assert math.isinf(tie.constant)


def test_exact_errors_of_laplace_keys_along_an_axis() -> None:
    """At n = 1 and 2 by quadrature; at many keys by the central limit theorem."""
    a = 0.3
    found = al.exact_error(al.Head([[1.0, 0.0], [0.0, 1.0]]), al.Laplace(2), [1, 10**9], [[a, 0.0]])
    limit = 2 * a / (1 - a**2)
    assert float(found.mean_square[0, 0]) == pytest.approx(2 + limit**2 + 2, rel=1e-9)
    clt = al.clt(al.Head(torch.eye(2).double()), al.Laplace(2), [a, 0.0])
    assert float(found.mean_square[0, 1]) * 10**9 == pytest.approx(float(clt.covariance.trace()), rel=1e-5)


def test_what_is_said_where_there_is_no_number() -> None:
    head = al.Head(torch.eye(2).double())
    with pytest.raises(
        al.LimitDoesNotExist,
        match=r"tail index α = 0\.8: they tend to Poisson–Dirichlet weights, E Σp² → 1 − α = 0\.2",
    ):
        head(al.Laplace(2))([1.25, 0.0])
    with pytest.raises(
        al.LimitDoesNotExist,
        match=r"α = 1\.25: the error is of order n\^−\(1 − 1/α\) = n\^−0\.2 up to logarithms",
    ):
        al.clt(head, al.Laplace(2), [0.8, 0.0])
    with pytest.raises(al.LimitDoesNotExist, match="One key takes all the weight as n grows"):
        head(al.StudentT(2, 3.0))([1.0, 0.0])
    assert al.heavy_tails(head, al.StudentT(2, 3.0), [1.0, 0.0], [10]).sum_squares_limit == 1
    with pytest.raises(al.NotKnown, match="have no heavy tail at this query, or none that is known"):
        al.heavy_tails(head, al.Gaussian(dim=2), [1.0, 0.0], [10])
    with pytest.raises(al.InputError, match="one query of 2 numbers, got shape"):
        al.heavy_tails(head, al.Laplace(2), [[1.0, 0.0], [0.5, 0.0]], [10])
    with pytest.raises(al.InputError, match="heavy_tails takes one head at a time"):
        al.heavy_tails(al.Head(torch.ones(2, 1, 1).double()), LAW, [1.0], [10])


def test_progress_is_told_once_for_each_n() -> None:
    told: list[tuple[int, int]] = []
    al.heavy_tails(ONE, LAW, [0.7], [1000, 2000, 1000], progress=lambda *now: told.append(now))
    assert told == [(1, 2), (2, 2)]


def test_what_is_not_known_is_none_in_the_record() -> None:
    found = al.heavy_tails(ONE, LAW, [0.7], [2, 10_000])
    assert bool(found.stable.isnan()[0])
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["stable"] == [None, float(found.stable[1])]


def test_the_record_and_the_figure() -> None:
    found = [al.heavy_tails(ONE, LAW, [a], [1000]) for a in (0.3, 0.7, 2.0)]
    record = found[2].to_dict()
    assert record["limit_exists"] is False
    assert record["sum_squares_limit"] == 0.5
    assert "central limit theorem holds" in repr(found[0])
    assert "stable law" in repr(found[1])
    for one in found:
        assert len(one.plot().axes) == 2


def test_unit_tail_is_that_of_levy_stable() -> None:
    law = stats.levy_stable(
        1.5, 1.0, scale=(2 / math.pi * math.gamma(1.5) * math.sin(0.75 * math.pi)) ** (-1 / 1.5)
    )
    assert law.sf(300.0) * 300**1.5 == pytest.approx(1.0, rel=0.01)
    assert law.cdf(stable_typical(1.5)) - law.cdf(-stable_typical(1.5)) == pytest.approx(0.5, abs=1e-6)
