"""How constants grow, which of the bounds is sharper, and the inequality on D that the averaged one rests on."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor

from attnlimit import (
    Ball,
    Box,
    Empirical,
    Gaussian,
    Head,
    InputError,
    Measure,
    Mixture,
    Rademacher,
    Sphere,
    bounds,
    exact_error,
)
from attnlimit.bounds.hypotheses import log_chi2
from attnlimit.bounds.light_tails import LightTails, QuadraticMoment


class TruncatedNormal(Measure):
    """N(0, 1) kept to [−R, R]: its radius grows while its proxy stays 1, so the horizon stays the same."""

    def __init__(self, radius: float) -> None:
        super().__init__(dim=1)
        self.radius = radius
        self.variance_proxy = 1.0

    def _cgf(self, a: Tensor) -> Tensor:
        mass = torch.special.ndtr(self.radius - a) - torch.special.ndtr(-self.radius - a)
        whole = math.erf(self.radius / 2**0.5)
        return (0.5 * a.square() + mass.log() - math.log(whole))[..., 0]


RADII = np.linspace(2.0, 6.0, 9)


def test_the_uniform_constant_is_exponential_in_R() -> None:
    head = Head([[0.5]])
    C = [bounds.uniform(head, TruncatedNormal(R), 1.5, 100, 0.05, method="kernel").constant for R in RADII]
    slope = np.diff(np.log(np.array(C) / RADII)) / np.diff(RADII)  # R_V = R in front of the exponential
    np.testing.assert_allclose(slope, 2 * 0.5 * 1.5, rtol=1e-9)  # e^{2‖A‖rR}


@pytest.mark.parametrize("strength", [0.4, 1.2])  # horizons √2·0.4 < 1 and √2·1.2 > 1
def test_the_averaged_constant_in_one_dimension_is_linear_in_R(strength: float) -> None:
    made = [bounds.averaged(Head([[strength]]), TruncatedNormal(R), 10**6) for R in RADII]
    assert made[0].inputs["horizon"] == pytest.approx(2**0.5 * strength)
    slope = np.diff(np.log([float(b.constant) for b in made])) / np.diff(np.log(RADII))
    np.testing.assert_allclose(slope, 1, rtol=1e-9)


def test_the_kernel_argument_has_no_logarithm_and_the_net_has_one() -> None:
    law, head, n = Sphere(3), Head(0.2 * torch.eye(3, dtype=torch.float64)), [10**2, 10**4, 10**8]
    kernel = bounds.uniform(head, law, 1.0, n, 0.1, method="kernel").constant
    net = bounds.uniform(head, law, 1.0, n, 0.1, method="net").constant
    np.testing.assert_allclose(kernel, kernel[0], rtol=1e-12)
    assert net[0] < net[1] < net[2] < net[0] * math.sqrt(4 * math.log(10**8))
    assert bool((kernel < net).all())


def test_jensen_halves_the_exponent_for_centred_tokens() -> None:
    """Sphere of R³ with ρ = 2: 0.753 and 0.111 at n = 10⁶; at each n the smaller one is given."""
    law, head, n = Sphere(3, 2.0), Head(torch.eye(3, dtype=torch.float64)), [10, 10**3, 10**6]
    kernel, jensen = (bounds.uniform(head, law, 1.0, n, 0.05, method=m).value for m in ("kernel", "jensen"))
    assert float(kernel[-1]) == pytest.approx(0.753, abs=1e-3)
    assert float(jensen[-1]) == pytest.approx(0.111, abs=1e-3)
    best = bounds.uniform(head, law, 1.0, n, 0.05)
    assert best.inputs["method"] == "jensen"
    torch.testing.assert_close(best.value, torch.minimum(kernel, jensen))


@pytest.mark.parametrize(
    "law",
    [
        Gaussian([1.0, -2.0], cov=[0.5, 2.0]),
        Mixture([0.7, 0.3], [Gaussian(cov=1.0, dim=2), Gaussian([1.0, 0.0], cov=0.2)]),
    ],
    ids=["Gaussian", "mixture"],
)
def test_light_tails_hold_and_are_near_the_exact_error(law: Measure) -> None:
    """The bound on the mean square lies above the exact one for all n and queries, within 2 % of it in the end for half of
    them; and so does the averaged one above the mean of exact roots."""
    head, n = Head([[0.8, 0.1], [0.0, -0.6]], [[1.0, 2.0]]), [1, 2, 5, 20, 100, 10**3, 10**4, 10**6, 10**9]
    x = law.sample(40, generator=0).tokens
    ratio = bounds.mean_square(head, law, x, n).value / exact_error(head, law, n, x).mean_square
    assert float(ratio.min()) >= 1
    assert float(ratio[:, -1].median()) < 1.02
    mean = exact_error(head, law, n, x).mean_square.sqrt().mean(0)
    assert bool((bounds.averaged(head, law, n, x).value >= mean).all())


def test_reach_is_above_the_largest_of_n_and_has_its_growth() -> None:
    """E max‖ξ‖² of n Gaussian vectors by Monte Carlo (standard error 2 %), and 2σ² log n in the end."""
    law, head = Gaussian(cov=[1.0, 4.0]), Head(torch.eye(2, dtype=torch.float64))
    light = LightTails.of(head, law, "a")
    n = torch.tensor([10.0, 1000.0], dtype=torch.float64)
    for size, reach in zip(n.tolist(), light.reach(n.log()).tolist(), strict=True):
        tokens = law.sample(2000 * int(size), generator=1).tokens.square().sum(-1).reshape(2000, -1)
        assert 1.1 < reach / float(tokens.amax(1).mean()) < 2.5
    one, many = light.reach(torch.tensor([0.0, 1e4], dtype=torch.float64)).tolist()
    assert 5 <= one < 5.05
    assert many / (2 * 4 * 1e4) == pytest.approx(1, abs=0.01)


def test_tilted_moments_grow_no_faster_than_said() -> None:
    """(E_a‖V(y−m)‖²)^{1/2} ≤ β + κ‖a‖ for laws that narrow and for mixtures that do not."""
    V, laws = (
        torch.tensor([[1.0, 0.5], [0.0, 2.0]], dtype=torch.float64),
        [
            Gaussian([3.0, 1.0], cov=[0.5, 2.0]),
            Mixture([0.99, 0.01], [Gaussian(dim=2), Gaussian([4.0, 0.0], cov=2.0)]),
        ],
    )
    a = torch.randn(500, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a = a / a.norm(dim=-1, keepdim=True) * torch.linspace(0, 6, 500, dtype=torch.float64)[:, None]
    for law in laws:
        light = LightTails.of(Head(torch.eye(2, dtype=torch.float64), V), law, "a")
        shift = (law.tilted_mean(a) - law.mean) @ V.T
        spread = (V @ law.tilted_cov(a) @ V.T).diagonal(dim1=-2, dim2=-1).sum(-1)
        size = (shift.square().sum(-1) + spread).sqrt()
        assert bool((size <= light.offset + light.growth * a.norm(dim=-1) + 1e-12).all())
        assert float((size / (light.offset + light.growth * a.norm(dim=-1))).max()) > 0.3


def test_the_net_is_minimised_over_eta() -> None:
    law, head, n, delta, R, r = Sphere(2), Head([[0.3, 0.0], [0.0, 0.3]]), 500, 0.1, 1.0, 1.0
    eta = np.logspace(-6, 2, 20001)
    points = math.log(2 / delta) + 2 * np.log1p(2 * r / eta)
    grid = 2 * R * np.exp(2 * 0.3) * np.sqrt(2 * points / n) + 2 * 0.3 * R**2 * eta
    made = bounds.uniform(head, law, r, n, delta, method="net")
    assert float(made.constant) / math.sqrt(n) == pytest.approx(grid.min(), rel=1e-6)


def test_fixed_query_beats_the_published_constant_and_its_own_parts() -> None:
    law, head = Sphere(4, 1.5), Head(0.8 * torch.eye(4, dtype=torch.float64))
    x, n = torch.eye(4, dtype=torch.float64)[0], [30, 10**3, 10**6]
    made = bounds.fixed_query(head, law, x, n, 0.05)
    rho = 0.8 * 1.5
    root = np.sqrt(2 * math.log(2 / 0.05) / np.array(n))
    reach = 1.5 + float(head(law)(x).norm())
    assert made.inputs["rho"] == pytest.approx(rho)
    assert bool((made.value <= torch.tensor(reach * math.exp(2 * rho) * root)).all())
    # Bernstein's constant tends to √(2 log(4/δ) E‖w̃u‖²), the central limit's scale.
    limit = math.sqrt(2 * math.log(4 / 0.05) * second_moment(head, law, x) / n[-1])
    assert limit < float(made.value[-1]) < 1.02 * limit


def second_moment(head: Head, law: Sphere, x: Tensor) -> float:
    """E‖w̃u‖² by quadrature over the height t = âᵀy/R in R⁴, of density ∝ √(1 − t²)."""
    a, limit = float(head.score_vector(x).norm()), float(head(law)(x).norm())
    nodes, weights = special.roots_chebyu(60)
    w = np.exp(a * law.radius * nodes)
    w /= weights @ w / weights.sum()
    distance = law.radius**2 - 2 * law.radius * nodes * limit + limit**2
    return weights @ (w**2 * distance) / weights.sum()


LAWS = [
    Sphere(1),
    Sphere(3, 2.0),
    Sphere(50, 3.0),
    Ball(2, 1.5),
    Box(3, 0.7),
    Rademacher(3),
    Gaussian([1.0, 2.0], cov=[0.5, 2.0]),
    Empirical([[0.0], [0.0], [0.0], [1.0]]),
    Empirical([[-3.0, 1.0], [2.0, 0.5], [0.1, 0.2]], weights=[0.001, 0.009, 0.99]),
    Mixture([0.99, 0.01], [Sphere(2, 0.5), Box(2, 3.0)]),
    Mixture([1 - 1e-6, 1e-6], [Gaussian(cov=1.0, dim=1), Gaussian(cov=4.0, dim=1)]),
    TruncatedNormal(2.0),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_D_is_at_most_its_quadratic(law: Measure, generator: torch.Generator) -> None:
    a = torch.randn(2000, law.dim, generator=generator, dtype=torch.float64)
    a = a / a.norm(dim=-1, keepdim=True) * torch.logspace(-2, 1, 2000, dtype=torch.float64)[:, None]
    a = (
        a[a.norm(dim=-1) < 4] if isinstance(law, TruncatedNormal) else a
    )  # its textbook CGF cancels farther out
    assert float((log_chi2(law, a) / a.square().sum(-1)).max()) <= law.log_chi2_slope * (1 + 1e-9) + 1e-9


def test_a_variance_proxy_alone_is_not_enough_for_D() -> None:
    """y ∈ {−1, 0, 1} with P(±1) = e^{−c} each: D/a² passes the optimal proxy, towards twice as much."""
    a = torch.linspace(0.01, 200, 20_000, dtype=torch.float64)[:, None]
    ratios = []
    for c in (5.0, 20.0, 60.0):
        p = math.exp(-c)
        law = Empirical([[-1.0], [0.0], [1.0]], weights=[p, 1 - 2 * p, p])
        proxy = float((2 * law.cgf(a) / a[:, 0].square()).max())
        ratios.append(float((log_chi2(law, a) / a[:, 0].square()).max()) / proxy)
    assert 1.5 < ratios[0] < ratios[1] < ratios[2] < 2
    assert ratios[2] > 1.98


def test_the_gaussian_comparison_is_exact_for_gaussian_queries() -> None:
    """E e^{ps‖a‖²/2} by quadrature in one dimension, mean and query bias included."""
    head = Head.from_projections([[0.7]], [[1.0]], bq=[0.4], scale=1.0)
    moment = QuadraticMoment.of(head, Gaussian([0.3], cov=2.0), slope=0.5)
    p = 0.6
    x = np.linspace(-40, 40, 400_001)
    density = stats.norm(0.3, 2**0.5).pdf(x) * np.exp(p * 0.5 * (0.7 * x + 0.4) ** 2 / 2)
    assert moment.log_at(p) == pytest.approx(math.log(integrate.trapezoid(density, x)), rel=1e-9)
    assert moment.horizon == pytest.approx(math.sqrt(0.5 * 0.49 * 2))


# Queries that stand for the law exactly when A is a multiple of the identity: D depends on few of them, or on ‖x‖.
RADIAL = 2 * torch.linspace(0.5e-3, 1 - 0.5e-3, 1_000, dtype=torch.float64).sqrt()
QUERIES = [
    (Sphere(3), torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)),
    (Rademacher(2), torch.tensor([[1.0, 1.0]], dtype=torch.float64)),
    (Ball(2, 2.0), torch.stack([RADIAL, torch.zeros_like(RADIAL)], -1)),
    (Empirical([[0.2], [1.5], [-2.0]]), torch.tensor([[0.2], [1.5], [-2.0]], dtype=torch.float64)),
]


@pytest.mark.parametrize(("law", "x"), QUERIES, ids=["sphere", "signs", "ball", "tokens"])
@pytest.mark.parametrize("strength", [0.3, 1.3])
def test_sampled_and_closed_form_are_above_the_exact_average(
    law: Measure, x: Tensor, strength: float
) -> None:
    head, n = Head(strength * torch.eye(law.dim, dtype=torch.float64)), [1, 10, 10**3, 10**6, 10**9]
    exact = bounds.averaged(head, law, n, x).value * (1 - 1e-5)  # rounding, and the quadrature of the ball
    sampled = bounds.averaged(head, law, n, generator=0, delta=1e-9).value
    closed = bounds.averaged(head, law, n, method="closed form").value
    assert bool((closed >= exact).all())
    assert bool((sampled >= exact).all())  # fails once in 1e9 seeds
    assert bool((sampled[:3] <= 1.2 * exact[:3] + 0.05).all())  # and is not far above


def test_the_closed_form_rate_shows_up() -> None:
    law, head = Rademacher(1), Head([[0.5]])
    n = [10**6, 10**8, 10**10]
    made = bounds.averaged(head, law, n, method="closed form")
    assert made.exponent == 0.5
    np.testing.assert_allclose(made.constant, 2 * (1 - 0.25) ** -0.5, rtol=1e-9)  # p = 1: 2R_V(1 − H²)^{−1/2}
    made = bounds.averaged(Head([[2.0]]), law, [10**100, 10**200], method="closed form")
    assert made.exponent == pytest.approx(1 / 8)
    slope = float((made.value[1] / made.value[0]).log() / math.log(1e100))
    assert -1 / 8 < slope < -1 / 8 + 0.01  # up to a power of log n


def test_self_normalised_cases() -> None:
    """One key, or constant values: no error, and the bounds that see the values say so."""
    one = Empirical([[1.0, 2.0]])
    head = Head(torch.eye(2, dtype=torch.float64), V=torch.zeros(1, 2, dtype=torch.float64))
    x = torch.ones(3, 2, dtype=torch.float64)
    assert bounds.mean_square(head, one, x, 5).value.tolist() == [0.0] * 3
    assert bounds.fixed_query(head, one, x, 5, 0.1).value.tolist() == [0.0] * 3
    assert bounds.empirical(head, one, x, 0.1, population=one).value.tolist() == [0.0] * 3


def test_large_scores_give_the_trivial_bound_not_overflow() -> None:
    law, head = Sphere(3), Head(500 * torch.eye(3, dtype=torch.float64))
    x = torch.eye(3, dtype=torch.float64)
    assert bounds.mean_square(head, law, x, 10).value.tolist() == [4.0] * 3
    made = bounds.fixed_query(head, law, x, [10, 10**12], 0.1)
    assert made.value.shape == (3, 2)
    assert bool((made.value <= 2).all())
    assert bounds.uniform(head, law, 1.0, 10, 0.1).value == 2.0
    sample = law.sample(50, generator=0)
    assert bool((bounds.empirical(head, sample, x, 0.1, radius=1.0).value <= 2).all())


def test_a_bound_of_nan_says_nothing_and_is_none() -> None:
    with pytest.raises(InputError, match="bound a must be numbers, got nan"):
        bounds.Bound("a", torch.tensor([1.0, torch.nan]), "mean square", "", (), {})
