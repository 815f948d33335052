"""Hardmax attention with n keys: order statistics against closed forms, mpmath, enumeration and Monte Carlo."""

import itertools
import json
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

import attnlimit as al
from attnlimit.exact import gaussian_maximum, hardmax_error
from attnlimit.numerics.caps import cap_moments
from attnlimit.numerics.order import inverse_count
from attnlimit.rates.logs import local_exponents

DOUBLE = torch.float64
SIZES = [1, 2, 7, 10**3, 10**6, 10**12]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


# --- the largest of n normals ---------------------------------------------------------------------


def test_gaussian_maximum_gives_the_known_means() -> None:
    mean = gaussian_maximum([10, 10**3, 10**6, 10**9]).mean
    torch.testing.assert_close(
        mean, torch.tensor([1.53875, 3.24144, 4.86290, 6.08768], dtype=DOUBLE), rtol=0, atol=5e-6
    )


def test_gaussian_maximum_of_few_has_closed_forms() -> None:
    found = gaussian_maximum([1, 2, 3])
    mean = [0.0, 1 / math.sqrt(math.pi), 1.5 / math.sqrt(math.pi)]
    variance = [1.0, 1 - 1 / math.pi, 1 + math.sqrt(3) / (2 * math.pi) - 9 / (4 * math.pi)]
    torch.testing.assert_close(found.mean, torch.tensor(mean, dtype=DOUBLE), rtol=0, atol=1e-13)
    torch.testing.assert_close(found.variance, torch.tensor(variance, dtype=DOUBLE), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("n", "ends"), [(40, (-3, 1, 3, 9)), (10**6, (2, 4, 6, 11)), (10**12, (5, 7, 9, 14))]
)
def test_gaussian_maximum_against_mpmath(n: int, ends: tuple[int, ...]) -> None:
    def moment(power: int) -> mpmath.mpf:
        return mpmath.quad(
            lambda g: (
                g**power
                * n
                * mpmath.npdf(g)
                * mpmath.exp((n - 1) * mpmath.log1p(-mpmath.erfc(g / mpmath.sqrt(2)) / 2))
            ),
            ends,
        )

    with mpmath.workdps(30):
        assert abs(moment(0) - 1) < 1e-14
        mean, square = moment(1), moment(2)
        variance = float(square - mean**2)
    found = gaussian_maximum(n)
    assert float(found.mean) == pytest.approx(float(mean), rel=1e-12)
    assert float(found.variance) == pytest.approx(variance, rel=1e-11)
    assert repr(found) == f"GaussianMaximum(n = {n} … {n}, exact (order statistics))"
    assert json.loads(json.dumps(found.to_dict()))["mean"] == found.mean.tolist()


# --- spheres and balls ----------------------------------------------------------------------------


@pytest.mark.parametrize(("law", "k"), [(al.Sphere(3, radius=2.0), 3), (al.Ball(1, radius=2.0), 3)])
def test_uniform_heights_have_a_closed_form(law: al.Measure, k: int) -> None:
    """h = (1 − c)/2 is uniform (Archimedes): the least of n has E h = 1/(n + 1) and E h² = 2/((n + 1)(n + 2))."""
    V, x = random(4, law.dim), random(5, law.dim, seed=1)
    A = random(law.dim, law.dim, seed=2)
    found = hardmax_error(al.Head(A, V), law, SIZES, x)
    a = x @ A.T
    n = torch.tensor(SIZES, dtype=DOUBLE)
    h, h2 = 1 / (n + 1), 2 / ((n + 1) * (n + 2))
    along = 4 * torch.nn.functional.normalize(a, dim=-1).matmul(V.T).square().sum(-1, keepdim=True)
    across = 4 * V.square().sum() - along
    torch.testing.assert_close(
        found.mean_square, 4 * along * h2 + 4 * across * (h - h2) / (k - 1), rtol=1e-11, atol=1e-40
    )
    torch.testing.assert_close(found.bias_square, 4 * along * h**2, rtol=1e-12, atol=0)
    top = 2 * a.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(found.height_gap, 2 * top * h, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.height, top * (1 - 2 * h), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", [2, 5, 9, 51])
@pytest.mark.parametrize("n", [3, 10**6, 10**12])
def test_least_cap_against_mpmath(order: int, n: int) -> None:
    """E h = ∫ P(h_min > h) dh and E h² = ∫ 2h P(h_min > h) dh, P = (1 − I_h(α, α))ⁿ: another integral, another
    incomplete beta function."""
    alpha = mpmath.mpf(order - 1) / 2
    with mpmath.workdps(25):
        scale = (alpha * mpmath.beta(alpha, alpha) / n) ** (1 / alpha)  # I_h ≈ h^α/(α B)
        ends = [0, *(m * scale for m in (0.1, 0.5, 1, 2, 4, 8, 20, 100, 1000) if m * scale < 1), 1]

        def survival(h: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(n * mpmath.log1p(-mpmath.betainc(alpha, alpha, 0, h, regularized=True)))

        ends = [end for end in ends if end < 1] + ([1] if n < 10 else [])
        first = mpmath.quad(survival, ends, maxdegree=5)
        second = mpmath.quad(lambda h: 2 * h * survival(h), ends, maxdegree=5)
    found = cap_moments(order, np.array([n]))[:, 0]
    assert found.tolist() == pytest.approx([float(first), float(second)], rel=1e-9)


@pytest.mark.parametrize(
    "law", [al.Sphere(1), al.Sphere(4, radius=0.5), al.Ball(3), al.Ball(1), al.Rademacher(3)]
)
def test_against_monte_carlo(law: al.Measure) -> None:
    """Means of 40,000 samples of 6 keys within 5 standard errors: six comparisons a law, false alarm below 4e-6."""
    n, count = 6, 40_000
    head = al.Head(random(law.dim, 2), random(3, law.dim, seed=1))
    x = random(2, 2, seed=2)
    keys = law.sample(n * count, generator=3).tokens.reshape(count, n, law.dim)
    scores = keys @ head.score_vector(x).T
    best = scores.argmax(1)  # no ties that matter: the same score is the same key
    chosen = keys.gather(1, best[..., None].expand(-1, -1, law.dim))
    errors = head.read(chosen) - head.hardmax(law)(x)
    found = hardmax_error(head, law, n, x)
    for each, exact in ((errors.square().sum(-1), found.mean_square), (scores.amax(1), found.height)):
        gap = (each.mean(0) - exact[:, 0]).abs()
        assert bool((gap <= 5 * each.std(0) / count**0.5 + 1e-12).all())
    assert bool((found.bias_square <= found.mean_square).all())


@pytest.mark.parametrize("dim", [2, 3, 5, 9])
def test_height_approaches_the_top_like_a_power(dim: int) -> None:
    sizes = [10**11, 10**12]
    head, x = al.Head(torch.eye(dim, dtype=DOUBLE)), torch.eye(1, dim, dtype=DOUBLE)
    sphere, ball = (hardmax_error(head, law, sizes, x) for law in (al.Sphere(dim), al.Ball(dim)))
    assert local_exponents(sizes, sphere.height_gap)[0, 0] == pytest.approx(2 / (dim - 1), rel=2e-3)
    assert local_exponents(sizes, sphere.rms)[0, 0] == pytest.approx(1 / (dim - 1), rel=2e-3)
    assert local_exponents(sizes, ball.height_gap)[0, 0] == pytest.approx(2 / (dim + 1), rel=1e-2)


def test_one_precision_does_not_spoil_the_other() -> None:
    single, double = (
        hardmax_error(
            al.Head(torch.eye(4).to(kind)), al.Sphere(4, dtype=kind), [10**9], torch.eye(1, 4).to(kind)
        )
        for kind in (torch.float32, DOUBLE)
    )
    torch.testing.assert_close(single.mean_square, double.mean_square, rtol=1e-12, atol=0)


# --- finitely many keys ---------------------------------------------------------------------------


def enumerated(
    head: al.Head, keys: al.Empirical, n: int, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """E‖·‖² and the norm of the mean error squared, over all samples of n keys."""
    square, mean = torch.zeros(len(x), dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE)
    limit = head.hardmax(keys)(x)
    for index in itertools.product(range(len(keys)), repeat=n):
        chance = keys.probabilities[list(index)].prod()
        error = head.hardmax(keys.select(torch.tensor(index)))(x) - limit
        square = square + chance * error.square().sum(-1)
        mean = mean + chance * error
    return square, mean.square().sum(-1)


@pytest.mark.parametrize("weights", [None, [0.1, 0.25, 0.05, 0.4, 0.2]])
def test_finite_support_against_all_samples(weights: list[float] | None) -> None:
    """Keys 0 and 1 coincide with other values, and tie with key 2 along the diagonal; x = 0 ties them all."""
    tokens = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.5], [0.3, 0.1]], dtype=DOUBLE)
    keys = al.Empirical(
        tokens, random(5, 3), None if weights is None else torch.tensor(weights, dtype=DOUBLE)
    )
    head = al.Head(torch.eye(2, dtype=DOUBLE), random(2, 3, seed=1))
    x = torch.tensor([[1.0, 0.0], [0.3, 3 * 0.1], [-1.0, 0.2], [0.0, 0.0]], dtype=DOUBLE)
    found = hardmax_error(head, keys, [1, 2, 4], x)
    for k, n in enumerate(found.n):
        square, bias = enumerated(head, keys, n, x)
        torch.testing.assert_close(found.mean_square[:, k], square, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(found.bias_square[:, k], bias, rtol=1e-11, atol=1e-15)
    assert found.method == "exact (score levels, keys drawn with replacement)"


def test_two_keys_miss_the_top_with_probability_one_minus_p_to_the_n() -> None:
    p = 1e-12
    keys = al.Empirical([[0.0], [1.0]], weights=[1 - p, p])
    found = hardmax_error(al.Head([[1.0]]), keys, SIZES, [[2.0]])
    expected = torch.tensor([math.exp(n * math.log1p(-p)) for n in SIZES], dtype=DOUBLE)
    torch.testing.assert_close(found.mean_square[0], expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.height_gap[0], 2 * expected, rtol=1e-12, atol=0)
    rare_bottom = hardmax_error(
        al.Head([[1.0]]), al.Empirical([[0.0], [1.0]], weights=[1e-3, 0.999]), 30, [[1.0]]
    )
    assert float(rare_bottom.mean_square) == pytest.approx(1e-90, rel=1e-9)


def test_signs_are_a_finite_support() -> None:
    """All corners as a population, the third coordinate unseen by the scores and so averaged among ties."""
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=DOUBLE)] * 3)
    head = al.Head(torch.diag(torch.tensor([1.0, -2.0, 0.0], dtype=DOUBLE)), random(2, 3))
    x = torch.tensor([[1.0, 1.0, 1.0], [0.5, 0.25, 0.0], [1.0, 0.0, 0.0]], dtype=DOUBLE)
    signs = hardmax_error(head, al.Rademacher(3), [1, 5, 10**4], x)
    keys = hardmax_error(head, al.Empirical(corners), [1, 5, 10**4], x)
    for name in ("mean_square", "bias_square", "height_gap"):
        torch.testing.assert_close(getattr(signs, name), getattr(keys, name), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("share", [1e-6, 0.01, 0.4, 1.0])
@pytest.mark.parametrize("n", [1, 3, 50, 10**4])
def test_inverse_count_against_the_binomial(share: float, n: int) -> None:
    m = np.arange(1, n + 1)
    expected = float((binom.pmf(m, n, share) / m).sum())
    found = inverse_count(torch.tensor([share], dtype=DOUBLE), float(n))
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_inverse_count_with_very_many_keys() -> None:
    """M is Poisson(λ): E[1/M; M ≥ 1] = e^{−λ}(Ei(λ) − γ − log λ)."""
    n = 1e12
    for mean in (1e-3, 1.0, 30.0):
        expected = mpmath.exp(-mean) * (mpmath.ei(mean) - mpmath.euler - mpmath.log(mean))
        assert float(inverse_count(torch.tensor([mean / n], dtype=DOUBLE), n)) == pytest.approx(
            float(expected), rel=1e-9
        )


@given(seed=st.integers(0, 10**6), count=st.integers(2, 8), n=st.integers(1, 10**6))
def test_splitting_a_key_and_the_order_of_keys_change_nothing(seed: int, count: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(-2, 3, (count, 2), generator=generator).double()  # many ties
    weights = torch.rand(count, generator=generator, dtype=DOUBLE) + 0.01
    weights = weights / weights.sum()
    head, x = al.Head(torch.eye(2, dtype=DOUBLE)), torch.tensor([[1.0, 0.5], [1.0, -1.0]], dtype=DOUBLE)
    whole = hardmax_error(head, al.Empirical(tokens, weights=weights), n, x)
    order = torch.randperm(count, generator=generator)
    halves = torch.cat([weights[order] / 2] * 2)
    parts = hardmax_error(head, al.Empirical(torch.cat([tokens[order]] * 2), weights=halves), n, x)
    torch.testing.assert_close(whole.mean_square, parts.mean_square, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(whole.height, parts.height, rtol=1e-12, atol=1e-12)
    assert bool((whole.bias_square <= whole.mean_square * (1 + 1e-9) + 1e-15).all())


# --- ties everywhere, words and refusals ----------------------------------------------------------


@pytest.mark.parametrize("law", [al.Sphere(3, radius=2.0), al.Ball(3), al.Gaussian(cov=[1.0, 2.0, 3.0])])
def test_without_scores_all_keys_are_averaged(law: al.Measure) -> None:
    V = random(2, 3)
    found = hardmax_error(al.Head(torch.zeros(3, 3, dtype=DOUBLE), V), law, [1, 10], random(4, 3, seed=1))
    variance = (V @ law.covariance @ V.T).trace()
    expected = (variance / torch.tensor([1.0, 10.0], dtype=DOUBLE)).expand(4, 2)
    torch.testing.assert_close(found.mean_square, expected)
    assert not bool(found.height_gap.any())


def test_results_are_plain_data() -> None:
    found = hardmax_error(al.Head([[1.0]]), al.Ball(1), [1, 10], [[1.0], [2.0]])
    assert repr(found) == "HardmaxError(2 queries, n = 1 … 10, exact (order statistics of the height))"
    data = json.loads(json.dumps(found.to_dict()))
    assert set(data) == {"n", "mean_square", "bias_square", "height", "height_gap", "top", "method"}
    assert data["top"] == [1.0, 2.0]
    torch.testing.assert_close(found.rms**2, found.mean_square)


def test_a_gaussian_says_how_its_top_grows() -> None:
    head = al.Head(torch.eye(2, dtype=DOUBLE))
    words = r"grows like √\(2 aᵀΣa log n\). In standard deviations its mean is 1.539, 3.241, 4.863, 6.088 at n = 10, 10\^3"
    with pytest.raises(al.LimitDoesNotExist, match=words):
        hardmax_error(head, al.Gaussian(dim=2), 10, [[1.0, 0.0]])
    with pytest.raises(al.LimitDoesNotExist, match="No hardmax limit"):
        hardmax_error(head, al.Laplace(2), 10, [[1.0, 0.0]])


def test_what_is_not_known_is_refused() -> None:
    head = al.Head(torch.eye(2, dtype=DOUBLE))
    with pytest.raises(al.NotKnown, match="no known order statistics"):
        hardmax_error(head, al.Box(2), 10, [[1.0, 0.5]])
    with pytest.raises(al.InputError, match=r"beyond 10\^12"):
        hardmax_error(head, al.Sphere(2), 10**13, [[1.0, 0.5]])
    with pytest.raises(al.InputError, match=r"One head at a time.*head.each"):
        hardmax_error(al.Head(torch.eye(2, dtype=DOUBLE).expand(3, 2, 2)), al.Sphere(2), 10, [[1.0, 0.5]])
    with pytest.raises(al.InputError, match="3-dimensional keys"):
        hardmax_error(al.Head(torch.eye(3, dtype=DOUBLE)), al.Sphere(2), 10, [[1.0, 0.5]])
    with pytest.raises(al.InputError, match="leaves the range of floating point"):
        hardmax_error(al.Head([[1.0]], V=[[1e200]]), al.Rademacher(1), 10, [[1.0]])
