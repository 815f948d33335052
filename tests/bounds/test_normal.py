"""How normal the error is, and how far the effective keys of n tokens are from their law's: against draws, with false bounds.

Distances of 20,000 draws from Φ are within 0.023 of the truth but for probability 1e-9 (Dvoretzky, Kiefer and Wolfowitz).
"""

import math

import pytest
import torch

from attnlimit import Empirical, Gaussian, Head, HypothesisFailed, Laplace, Measure, Mixture, Sphere, bounds
from attnlimit.bounds.observed_chi2 import effective_interval

DRAWS = 20_000
NOISE = math.sqrt(math.log(2e9) / (2 * DRAWS))
TWO = Mixture([0.9, 0.1], [Gaussian(cov=0.3, dim=2), Gaussian([1.0, 1.0], cov=0.5)])
SKEWED = Empirical([[0.0], [0.1], [2.5]], weights=[0.6, 0.37, 0.03])


def draw(law: Measure, head: Head, x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Γ_n and the weights of n tokens, DRAWS times."""
    keys = law.sample(DRAWS * n, generator=n).tokens.reshape(DRAWS, n, -1)
    weights = (keys @ head.score_vector(x)).softmax(-1)
    return head.read_linear(torch.einsum("mn,mnd->md", weights, keys)), weights


@pytest.mark.parametrize(
    ("law", "n"), [(Gaussian(dim=2), 400), (TWO, 300), (Sphere(2, 2.0), 60), (SKEWED, 100), (SKEWED, 400)]
)
def test_berry_esseen_is_above_the_distance_from_the_normal_law(law: Measure, n: int) -> None:
    head, x = Head(0.5 * torch.eye(law.dim, dtype=torch.float64)), torch.ones(law.dim, dtype=torch.float64)
    e = torch.ones(law.dim, dtype=torch.float64) / law.dim**0.5
    made = bounds.berry_esseen(head, law, x, n, e)
    error = (draw(law, head, x, n)[0] - head(law)(x)) @ e
    z = (math.sqrt(n) * error / made.inputs["tau"]).sort().values
    rank = torch.arange(DRAWS + 1, dtype=torch.float64) / DRAWS
    seen = max(float((side - torch.special.ndtr(z)).abs().max()) for side in (rank[1:], rank[:-1]))
    assert seen <= float(made.value) + NOISE
    assert float(made.value) < 0.95
    if law is SKEWED:  # a law on few points is far from normal: a tenth of the bound is caught
        assert seen > float(made.value) / 10 + NOISE


def test_berry_esseen_falls_like_the_root_of_n_and_is_sharp_for_third_moments() -> None:
    head, x = Head([[1.0]]), [[0.7], [0.0]]
    value = bounds.berry_esseen(head, SKEWED, x, [10**6, 10**8]).value
    ratio = (value[:, 0] - 3e-4) / (value[:, 1] - 3e-4)  # without the grid's share
    assert bool(((ratio > 8) & (ratio < 12)).all())
    tokens = SKEWED.tokens[:, 0] - SKEWED.mean
    third = (SKEWED.probabilities * tokens.abs() ** 3).sum() / float(SKEWED.covariance) ** 1.5
    plain = 0.4748 * float(third) / 10**3  # at x = 0 attention is the plain average
    assert float(value[1, 0]) == pytest.approx(plain, rel=0.1, abs=4e-4)


def test_the_direction_of_largest_variance_is_the_default() -> None:
    law, head = Gaussian(cov=[1.0, 9.0]), Head(torch.zeros(2, 2, dtype=torch.float64))
    assert float(bounds.berry_esseen(head, law, [1.0, 0.0], 100).inputs["tau"]) == pytest.approx(3)
    along = bounds.berry_esseen(head, law, [1.0, 0.0], 100, [2.0, 0.0])
    assert float(along.inputs["tau"]) == pytest.approx(1)
    constant = Head(torch.eye(2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))
    assert float(bounds.berry_esseen(constant, law, [1.0, 0.0], 100).value) == 0


def test_third_moments_that_may_be_infinite_are_refused() -> None:
    with pytest.raises(HypothesisFailed, match=r"The Berry–Esseen bound needs Λ\(3a\) finite, but Laplace"):
        bounds.berry_esseen(Head([[0.4]]), Laplace(1), [1.0], 100)
    with pytest.raises(HypothesisFailed, match=r"The observed χ² bound needs Λ\(4a\) finite, but Laplace"):
        bounds.observed_chi2(Head([[0.3]]), Laplace(1), [1.0], 100, 0.1)
    assert float(bounds.berry_esseen(Head([[0.1]]), Laplace(1), [1.0], 10**6).value) < 0.1


@pytest.mark.parametrize("law", [Gaussian(dim=2), TWO, Sphere(2, 2.0)])
@pytest.mark.parametrize("n", [30, 300])
def test_the_observed_chi2_is_where_it_should_be(law: Measure, n: int) -> None:
    """At δ = 0.05 fewer than 0.061 of the draws fail (false-alarm rate 1e-11); at n = 300 a sixtieth of the bound fails more often."""
    head, x = Head(0.35 * torch.eye(2, dtype=torch.float64)), torch.ones(2, dtype=torch.float64)
    made = bounds.observed_chi2(head, law, x, n, 0.05)
    weights = draw(law, head, x, n)[1]
    off = ((n * weights.square().sum(-1)).log() - made.inputs["D"]).abs()
    assert float((off > made.value).double().mean()) < 0.061
    if n == 300:
        assert float((off > made.value / 60).double().mean()) > 0.061


def test_the_observed_chi2_knows_its_ends() -> None:
    """Never farther than all keys alike or one key alone; 0 without scores; of order n^{−1/2} in the end."""
    law = Gaussian(dim=1)
    wide = bounds.observed_chi2(Head([[3.0]]), law, [1.0], [1, 10], 0.1).value
    assert wide.tolist() == pytest.approx([9.0, 9.0])
    assert float(bounds.observed_chi2(Head([[0.0]]), law, [1.0], 10**8, 0.1).value) < 1e-3
    far = bounds.observed_chi2(Head([[0.5]]), law, [1.0], [10**8, 10**10], 0.1).value
    assert float(far[0] / far[1]) == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize(("s", "n"), [(0.5, 500), (1.0, 4000), (1.5, 16000), (2.0, 1000)])
def test_the_interval_of_effective_keys_covers(s: float, n: int) -> None:
    """Gaussian scores: n e^{−s²} effective keys, 1,000 samples. Between 87 % and 99.5 % (standard error at most 1 %); ends half as far cover
    less, the negative control, where they are not 1."""
    scores = s * torch.randn(1000, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    weights = scores.softmax(1)
    low, high = effective_interval(weights, torch.full((1000,), float(n), dtype=torch.float64))
    truth, middle = n * math.exp(-(s**2)), 1 / weights.square().sum(1)
    assert 0.87 < float(((low < truth) & (truth < high)).double().mean()) < 0.995
    less, more = (low * middle).sqrt(), (high * middle).sqrt()
    if s <= 1:
        assert float(((less < truth) & (truth < more)).double().mean()) < 0.87


def test_the_interval_of_effective_keys_has_ends() -> None:
    """Equal weights are known to be equal; one key of 200 with all the weight may be one of a few; hidden keys do not count."""
    weights = torch.zeros(3, 200, dtype=torch.float64)
    weights[0], weights[1, 0], weights[2, :120] = 1 / 200, 1.0, 1 / 120
    low, high = effective_interval(weights, torch.tensor([200.0, 200.0, 120.0], dtype=torch.float64))
    assert low.tolist() == pytest.approx([200.0, 1.0, 120.0])
    assert high[[0, 2]].tolist() == pytest.approx([200.0, 120.0])
    assert 2 < float(high[1]) < 10
