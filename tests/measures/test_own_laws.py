"""Laws of a user's own: by their CGF alone, or by a sampler alone."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

import attnlimit as al

DOUBLE = torch.float64


class Gumbel(al.Measure):
    """Independent standard Gumbel coordinates: Λ(a) = Σ log Γ(1 − a_i), a_i < 1."""

    domain = "a_i < 1"
    growth = "grows like max a_i·log n"

    def _cgf(self, a: Tensor) -> Tensor:
        return torch.lgamma(1 - a).sum(-1)

    def _in_domain(self, a: Tensor) -> Tensor:
        return (a < 1).all(-1)


def test_a_law_by_its_cgf_alone() -> None:
    law, head = Gumbel(dim=2), al.Head([[0.5, 0.0], [0.0, -2.0]])
    x = torch.tensor([[0.3, 0.4], [-1.0, 0.2]], dtype=DOUBLE)
    a = x @ head.A.T
    torch.testing.assert_close(head(law)(x), -torch.special.digamma(1 - a))
    trigamma = torch.special.polygamma(1, 1 - a)
    torch.testing.assert_close(head(law).jacobian(x), trigamma[..., None] * head.A)
    torch.testing.assert_close(law.covariance, math.pi**2 / 6 * torch.eye(2, dtype=DOUBLE))
    assert al.clt(head, law, x).covariance.shape == (2, 2, 2)
    with pytest.raises(al.LimitDoesNotExist, match=r"finite on a_i < 1.*score grows like max a_i·log n"):
        head(law)([2.0, 0.0])


def test_a_law_without_a_sampler_says_so() -> None:
    with pytest.raises(al.NotKnown, match=r"Gumbel\(dim=2\) has no sampler: give its class a method _draw"):
        Gumbel(dim=2).sample(3, generator=0)


def normal(u: Tensor) -> Tensor:
    return math.sqrt(2) * torch.erfinv(2 * u - 1)


def box(u: Tensor) -> Tensor:
    return 2 * u - 1


def worst_t(law: al.FromSampler, truth: al.Measure) -> float:
    """The largest |error|/standard error over 12 queries and all coordinates."""
    head = al.Head(torch.eye(truth.dim, dtype=DOUBLE))
    x = 0.6 * torch.randn(12, truth.dim, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    return float(((head(law)(x) - head(truth)(x)) / head(law).standard_error(x)).abs().max())


@pytest.mark.parametrize(
    ("transform", "truth"),
    [(box, al.Box(2)), (normal, al.Gaussian(dim=2)), (box, al.Box(5)), (normal, al.Gaussian(dim=5))],
)
def test_a_law_by_its_sampler_alone(transform, truth: al.Measure) -> None:
    """t-tests with 15 degrees of freedom, 1e-5/60 each: under 1e-5 were the scrambles not fixed."""
    law = al.FromSampler(transform, dim=truth.dim)
    head = al.Head(torch.eye(truth.dim, dtype=DOUBLE))
    x = torch.full((truth.dim,), 0.5, dtype=DOUBLE)
    assert worst_t(law, truth) < stats.t.isf(1e-5 / 120, df=15)
    plain = al.clt(head, truth, x).standard_error(16 * 4096)
    assert bool((head(law).standard_error(x) < plain / 3).all()), "no better than plain Monte Carlo"


def test_the_standard_error_catches_a_law_that_is_one_percent_off() -> None:
    assert worst_t(al.FromSampler(lambda u: 1.01 * box(u), dim=2), al.Box(2)) > stats.t.isf(1e-5 / 120, df=15)


def test_more_uniforms_than_dimensions() -> None:
    law = al.FromSampler(lambda u: u[:, :1] + u[:, 1:2] + u[:, 2:], dim=1, uniforms=3)
    a = torch.tensor([0.7], dtype=DOUBLE)
    torch.testing.assert_close(law.tilted_mean(a), 1.5 + 3 * al.Box(1, 0.5).tilted_mean(a), rtol=1e-5, atol=0)
    assert law.sample(7, generator=0).tokens.shape == (7, 1)


def test_closed_forms_have_no_standard_error() -> None:
    head = al.Head(torch.eye(2, dtype=DOUBLE))
    assert torch.equal(head(al.Box(2)).standard_error([1.0, 2.0]), torch.zeros(2, dtype=DOUBLE))


@pytest.mark.parametrize("ask", ["tilted_mean", "tilted_cov"])
def test_a_sampler_refuses_what_too_few_points_carry(ask: str) -> None:
    law = al.FromSampler(normal, dim=2, points=256, scrambles=4)
    with pytest.raises(
        al.NotKnown, match=r"not resolved: at the largest score only [\d.]+ of the points.*points="
    ):
        getattr(law, ask)([[0.1, 0.0], [4.0, 0.0]])
    with pytest.raises(al.NotKnown, match="not resolved"):
        al.Head(torch.eye(2, dtype=DOUBLE))(law).standard_error([4.0, 0.0])


def test_a_sampler_claims_nothing_about_its_support() -> None:
    law = al.FromSampler(box, dim=2, points=256)
    assert law.radius == math.inf
    assert law.variance_proxy is None
    with pytest.raises(al.NotKnown, match=r"support of FromSampler.* is not known from its sampler"):
        law.top([1.0, 0.0])


def test_the_ends_of_the_unit_interval_are_never_drawn() -> None:
    """In single precision one uniform in 2²⁴ is zero, where a quantile function is infinite."""
    law = al.FromSampler(lambda u: torch.erfinv(2 * u - 1), dim=1, points=64, dtype=torch.float32)
    ends = law._tokens(torch.tensor([[0.0], [1.0]]), 1)
    assert bool(ends.isfinite().all())


def test_bad_samplers() -> None:
    with pytest.raises(al.InputError, match=r"transform must map \(64, 3\) to \(64, 3\), it gave \(64, 1\)"):
        al.FromSampler(lambda u: u[:, :1], dim=3, points=64)
    with pytest.raises(
        al.InputError,
        match="scrambles must be a whole number of at least 2, got 1: their spread tells the error",
    ):
        al.FromSampler(box, dim=1, scrambles=1)
    with pytest.raises(al.InputError, match="points must be a whole number of at least 1, got 0"):
        al.FromSampler(box, dim=1, points=0)
    with pytest.raises(al.InputError, match="uniforms must be a whole number of at least 1, got 0"):
        al.FromSampler(box, dim=1, uniforms=0)
    with pytest.raises(al.InputError, match="tokens has 64 entries that are nan or infinite"):
        al.FromSampler(lambda u: u / 0, dim=1, points=64)
