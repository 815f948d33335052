import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad
from scipy.special import hyp1f1, j0
from torch import Tensor

from attnlimit.numerics.bessel import sphere_cgf
from attnlimit.numerics.dirichlet import dirichlet_expectation


def squared_gain(q: Tensor, dim: int) -> Tensor:
    """A_d(√q)²/q, which gives the covariance of attention over the uniform sphere."""
    return sphere_cgf(q.sqrt(), dim).ratio_over_r.square()


def some_weights(dim: int, scale: float = 1.0) -> Tensor:
    return torch.rand(dim, generator=torch.Generator().manual_seed(dim), dtype=torch.float64).square() * scale


@pytest.mark.parametrize("dim", [1, 2, 7, 768])
def test_equal_weights_make_the_average_constant(dim: int) -> None:
    mean, by_coordinate = dirichlet_expectation(torch.exp, torch.full((dim,), 1.5, dtype=torch.float64))
    assert mean.item() == math.exp(1.5)
    torch.testing.assert_close(by_coordinate, torch.full_like(by_coordinate, math.exp(1.5) / dim))


@pytest.mark.parametrize("dim", [2, 3, 50, 768])
def test_moments_of_degree_zero_and_one(dim: int) -> None:
    """E T_i = 1/d and E[q T_i] = (2 s_i + Σ s)/(d (d+2))."""
    s = some_weights(dim)
    one, ones = dirichlet_expectation(torch.ones_like, s)
    mean, means = dirichlet_expectation(lambda q: q, s)
    close = {"rtol": 1e-14, "atol": 0.0}
    torch.testing.assert_close(one, torch.ones_like(one), **close)
    torch.testing.assert_close(ones, torch.full_like(s, 1 / dim), **close)
    torch.testing.assert_close(mean, s.mean(), **close)
    torch.testing.assert_close(means, (2 * s + s.sum()) / (dim * (dim + 2)), **close)


@pytest.mark.parametrize("weights", [(0.0, 1.0), (0.3, 40.0), (5.0, 2.0)])
def test_two_dimensions_against_quadrature_over_the_angle(weights: tuple[float, float]) -> None:
    def integral(square: float) -> float:
        """E[F(q) T_1^square] over the angle θ, x = (cos θ, sin θ)."""

        def integrand(angle: float) -> float:
            t = math.cos(angle) ** 2
            q = weights[0] * t + weights[1] * (1 - t)
            return t**square / (1 + q)

        return quad(integrand, 0, math.pi / 2, epsabs=1e-14, epsrel=1e-14)[0] * 2 / math.pi

    mean, by_coordinate = dirichlet_expectation(
        lambda q: 1 / (1 + q), torch.tensor(weights, dtype=torch.float64)
    )
    assert mean.item() == pytest.approx(integral(0), rel=1e-12)
    assert by_coordinate[0].item() == pytest.approx(integral(1), rel=1e-12)
    assert by_coordinate[1].item() == pytest.approx(integral(0) - integral(1), rel=1e-12)


def test_three_dimensions_against_quadrature_over_the_sphere() -> None:
    s = (0.2, 1.0, 2.5)

    def integral(coordinate: int | None) -> float:
        def integrand(angle: float, height: float) -> float:
            t = ((1 - height**2) * math.cos(angle) ** 2, (1 - height**2) * math.sin(angle) ** 2, height**2)
            value = math.exp(sum(a * b for a, b in zip(s, t, strict=True)))
            return value if coordinate is None else value * t[coordinate]

        return dblquad(integrand, 0, 1, 0, math.pi / 2, epsabs=1e-12, epsrel=1e-12)[0] * 2 / math.pi

    mean, by_coordinate = dirichlet_expectation(torch.exp, torch.tensor(s, dtype=torch.float64))
    assert mean.item() == pytest.approx(integral(None), rel=1e-12)
    for i in range(3):
        assert by_coordinate[i].item() == pytest.approx(integral(i), rel=1e-12)


@pytest.mark.parametrize("rate", [1.0, 20.0])
@pytest.mark.parametrize(("zeros", "dim"), [(4, 10), (200, 768)])
def test_two_distinct_weights_give_a_beta_variable(zeros: int, dim: int, rate: float) -> None:
    """With k weights 0 and d−k weights 1, 1−q ~ Beta(k/2, (d−k)/2): E e^{−λ(1−q)} = ₁F₁(k/2; d/2; −λ)."""
    s = torch.cat([torch.zeros(zeros), torch.ones(dim - zeros)]).double()
    mean, by_coordinate = dirichlet_expectation(lambda q: torch.exp(rate * (q - 1)), s)
    assert mean.item() == pytest.approx(hyp1f1(zeros / 2, dim / 2, -rate), rel=1e-13)
    assert by_coordinate[-1].item() == pytest.approx(hyp1f1(zeros / 2, dim / 2 + 1, -rate) / dim, rel=1e-13)


@pytest.mark.parametrize("frequency", [1.0, 60.0, 350.0])
def test_high_degrees_keep_their_accuracy(frequency: float) -> None:
    """In two dimensions q = cos(2θ) for weights ±1, so E cos(κq) = J₀(κ); κ = 350 needs degree 400."""
    mean, by_coordinate = dirichlet_expectation(
        lambda q: torch.cos(frequency * q), torch.tensor([-1.0, 1.0], dtype=torch.float64)
    )
    assert mean.item() == pytest.approx(j0(frequency), abs=1e-13)
    torch.testing.assert_close(by_coordinate, mean.expand(2) / 2, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("dim", "scale"), [(2, 1.0), (3, 100.0), (50, 1e4), (768, 1e6)])
def test_coordinates_sum_to_the_mean(dim: int, scale: float) -> None:
    mean, by_coordinate = dirichlet_expectation(lambda q: squared_gain(q, dim), some_weights(dim, scale))
    assert by_coordinate.sum().item() == pytest.approx(mean.item(), rel=1e-13)
    assert (by_coordinate > 0).all()


def test_repeated_weights_and_their_order() -> None:
    """Equal weights get equal parts, and permuting the weights permutes the parts."""
    s = torch.tensor([3.0, 1.0, 3.0, 0.5, 1.0, 1.0], dtype=torch.float64)
    order = torch.tensor([5, 2, 0, 1, 4, 3])
    mean, by_coordinate = dirichlet_expectation(torch.exp, s)
    permuted_mean, permuted = dirichlet_expectation(torch.exp, s[order])
    assert permuted_mean == mean
    assert torch.equal(permuted, by_coordinate[order])
    assert by_coordinate[0] == by_coordinate[2]
    assert by_coordinate[1] == by_coordinate[4] == by_coordinate[5]


def test_derivative_in_a_weight() -> None:
    """∂/∂s_i E[Φ(q)] = E[Φ′(q) T_i], by a central difference of error about 1e-10."""
    s, step = some_weights(5), 1e-5
    _, by_coordinate = dirichlet_expectation(torch.cos, s)
    for i in range(5):
        shift = torch.zeros_like(s)
        shift[i] = step
        up, down = (dirichlet_expectation(torch.sin, s + sign * shift).mean for sign in (1, -1))
        assert by_coordinate[i].item() == pytest.approx(((up - down) / (2 * step)).item(), abs=1e-9)


def test_monte_carlo_in_fifty_dimensions(generator: torch.Generator) -> None:
    """51 two-sided comparisons at 5 standard errors: a false alarm in 3e-5 of seeds."""
    s = some_weights(50, scale=2000.0)
    x = torch.randn(100_000, 50, generator=generator, dtype=torch.float64)
    t = torch.nn.functional.normalize(x, dim=1).square()
    gain = squared_gain(t @ s, 50)
    samples = torch.cat([gain[:, None], gain[:, None] * t], dim=1)
    mean, by_coordinate = dirichlet_expectation(lambda q: squared_gain(q, 50), s)
    standard_error = samples.std(dim=0) / math.sqrt(len(samples))
    deviation = (samples.mean(dim=0) - torch.cat([mean[None], by_coordinate])) / standard_error
    assert deviation.abs().max() < 5


def test_keeps_the_dtype_of_the_weights() -> None:
    single = dirichlet_expectation(torch.exp, torch.tensor([0.5, 2.0, 1.0]))
    double = dirichlet_expectation(torch.exp, torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64))
    for low, high in zip(single, double, strict=True):
        assert low.dtype == torch.float32
        assert torch.equal(low, high.float())


@pytest.mark.parametrize("kink", [torch.sqrt, lambda q: (q - 0.4).abs()])
def test_refuses_a_function_that_is_not_smooth(kink) -> None:
    with pytest.raises(ValueError, match=r"not resolved by 512 Chebyshev nodes on \[0, 1\]"):
        dirichlet_expectation(kink, torch.tensor([0.0, 1.0]))


def test_refuses_a_function_that_is_not_finite() -> None:
    with pytest.raises(ValueError, match="not finite at q = "):
        dirichlet_expectation(torch.log, torch.tensor([-1.0, 1.0]))


def test_refuses_a_function_that_changes_the_shape() -> None:
    with pytest.raises(ValueError, match=r"returned shape \(\) for \(32,\) points"):
        dirichlet_expectation(torch.sum, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("weights", [[], [1.0, np.nan], [np.inf, 1.0]])
def test_refuses_weights_that_are_empty_or_not_finite(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be finite and at least one"):
        dirichlet_expectation(torch.exp, torch.tensor(weights))
