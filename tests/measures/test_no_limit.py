"""Where there is no limit, a measure says why and what n tokens do instead; it never returns inf or nan."""

import math
import re

import pytest
import torch
from torch import Tensor

import attnlimit as al

DOUBLE = torch.float64
QUANTITIES = ("cgf", "tilted_mean", "tilted_cov", "tilted_value_cov")


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("a", [[2.0, 0.0], [0.0, -2.0], [0.1, 3.0], [1e6, 1e6]])
def test_laplace_outside_its_domain(quantity: str, a: list[float]) -> None:
    law = al.Laplace(2, scale=0.5)
    with pytest.raises(al.LimitDoesNotExist, match=r"infinite cumulant generating function at a = A x = \["):
        getattr(law, quantity)(a)
    with pytest.raises(al.LimitDoesNotExist, match=r"finite on max\|a_i\| < 1/scale = 2\."):
        getattr(law, quantity)(a)
    with pytest.raises(
        al.LimitDoesNotExist, match=r"follows its largest key, whose score grows like b·max\|a_i\|·log n"
    ):
        getattr(law, quantity)(a)


def test_one_bad_query_of_a_batch_is_counted() -> None:
    a = torch.tensor([[0.5, 0.0], [5.0, 0.0], [0.0, 9.0]], dtype=DOUBLE)
    law = al.Laplace(2)
    assert law.in_domain(a).tolist() == [True, False, False]
    with pytest.raises(al.LimitDoesNotExist, match=r"\[5\.0, 0\.0\] \(2 of 3 queries\)"):
        law.tilted_mean(a)


@pytest.mark.parametrize("edge", [1.0, -1.0, math.nextafter(1.0, 2.0)])
def test_the_edge_of_laplace_is_outside(edge: float) -> None:
    assert not bool(al.Laplace(1).in_domain([edge]))
    inside = math.nextafter(1.0, 0.0)
    assert bool(al.Laplace(1).in_domain([inside]))
    for quantity in QUANTITIES:
        assert bool(getattr(al.Laplace(1), quantity)([inside]).isfinite().all())


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("size", [1e-300, 1e-8, 1.0, 1e8])
def test_student_t_has_no_limit_for_any_score(quantity: str, size: float) -> None:
    law = al.StudentT(3, df=4.0)
    with pytest.raises(
        al.LimitDoesNotExist, match=r"It is finite on a = 0 only.*score grows like n\^\(1/4\)"
    ):
        getattr(law, quantity)([0.0, size, 0.0])


def test_student_t_at_zero_is_its_mean_and_covariance() -> None:
    zero = torch.zeros(2, 3, dtype=DOUBLE)
    assert torch.equal(al.StudentT(3, df=1.5).tilted_mean(zero), zero)
    assert torch.equal(al.StudentT(3, df=4.0).covariance, 2 * torch.eye(3, dtype=DOUBLE))
    assert float(al.StudentT(3, df=1.0).cgf([0.0, 0.0, 0.0])) == 0.0
    with pytest.raises(
        al.LimitDoesNotExist, match=r"df=1\) has no mean: it needs df > 1\. Averages of n tokens"
    ):
        _ = al.StudentT(3, df=1.0).mean
    with pytest.raises(al.LimitDoesNotExist, match=r"df=2\) has no covariance: it needs df > 2"):
        _ = al.StudentT(3, df=2.0).covariance


def test_student_t_samples_have_its_covariance() -> None:
    """z-tests of mean and variance, |z| < 5.5: under 3e-7 together were the seed not fixed."""
    law, n = al.StudentT(2, df=12.0), 50_000
    x = law.sample(n, generator=5).tokens[:, 0]
    variance = float(law.covariance[0, 0])
    assert variance == pytest.approx(1.2)
    assert abs(x.mean()) < 5.5 * (variance / n) ** 0.5
    assert abs(x.square().mean() - variance) < 5.5 * x.square().std() / n**0.5


def test_a_mixture_has_the_narrowest_domain_and_all_growths() -> None:
    law = al.Mixture([0.5, 0.5], [al.Laplace(1, scale=0.5), al.Gaussian(dim=1)])
    assert law.in_domain([[1.9], [2.1]]).tolist() == [True, False]
    with pytest.raises(al.LimitDoesNotExist, match=r"log n; grows like √\(2 aᵀΣa log n\)"):
        law.cgf([2.1])


class Exponential(al.Measure):
    """Λ(a) = −log(1 − a), finite for a < 1, which its author forgot to say."""

    def __init__(self) -> None:
        super().__init__(dim=1)

    def _cgf(self, a: Tensor) -> Tensor:
        return -torch.log1p(-a[..., 0])


@pytest.mark.parametrize(("quantity", "a"), [("cgf", 1.0), ("cgf", 2.0), ("tilted_mean", 1.0)])
def test_a_cgf_that_forgets_its_domain_is_caught(quantity: str, a: float) -> None:
    with pytest.raises(al.LimitDoesNotExist, match=r"Exponential\(dim=1\) gives inf or nan.*_in_domain"):
        getattr(Exponential(), quantity)([a])


def test_overflow_is_refused() -> None:
    with pytest.raises(al.LimitDoesNotExist, match=r"leaves the range of torch\.float64.*head\.scaled"):
        al.Gaussian(dim=1).cgf([1e200])


# --- hardmax ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "a", "top"),
    [
        (al.Sphere(2, radius=2.0), [3.0, 4.0], [1.2, 1.6]),
        (al.Ball(2, radius=2.0), [-3.0, 4.0], [-1.2, 1.6]),
        (al.Box(2, half_width=3.0), [-0.1, 7.0], [-3.0, 3.0]),
        (al.Box(2, half_width=3.0), [0.0, 7.0], [0.0, 3.0]),
        (al.Rademacher(2), [-0.1, 0.2], [-1.0, 1.0]),
        (al.Rademacher(2), [-0.1, 0.0], [-1.0, 0.0]),
        (al.Mixture([0.1, 0.9], [al.Sphere(2, radius=3.0), al.Box(2)]), [1.0, 0.0], [3.0, 0.0]),
        (al.Mixture([0.1, 0.9], [al.Sphere(2, radius=0.5), al.Box(2)]), [1.0, 0.0], [1.0, 0.0]),
        (al.Mixture([0.25, 0.75], [al.Empirical([[1.0, 0.0]]), al.Empirical([[1.0, 4.0]])]), [1.0, 0.0], [1.0, 3.0]),
        (al.Gaussian([1.0, 2.0], [0.0, 5.0]), [3.0, 0.0], [1.0, 2.0]),
        (al.Empirical([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[1.0], [2.0], [4.0]]), [1.0, 0.5], [2.5]),
    ],
)  # fmt: skip
def test_top_of_the_support(law: al.Measure, a: list[float], top: list[float]) -> None:
    torch.testing.assert_close(law.top(a), torch.tensor(top, dtype=DOUBLE), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(law.top([[0.0, 0.0], a])[1], law.top(a))


@pytest.mark.parametrize(
    "law", [al.Sphere(2), al.Ball(2), al.Box(2), al.Rademacher(2), al.Empirical([[1.0, 2.0], [3.0, 4.0]])]
)
def test_without_a_score_all_keys_tie(law: al.Measure) -> None:
    torch.testing.assert_close(law.top([0.0, 0.0]), law.mean)


@pytest.mark.parametrize(
    "law",
    [
        al.Sphere(3, radius=2.0),
        al.Ball(3),
        al.Box(3),
        al.Rademacher(3),
        al.Mixture([0.5, 0.5], [al.Ball(3), al.Box(3)]),
    ],
)
def test_top_is_what_large_scores_tend_to(law: al.Measure) -> None:
    """The bias of softmax at scores κ is of order 1/κ."""
    a = torch.tensor([0.6, -1.0, 0.3], dtype=DOUBLE)
    bias = [float((law.tilted_mean(kappa * a) - law.top(a)).norm()) for kappa in (1e3, 1e6)]
    assert bias[0] < 1e-2
    assert bias[1] < 1.1e-3 * bias[0] + 1e-15


@pytest.mark.parametrize(
    ("law", "growth"),
    [
        (al.Gaussian(dim=2), "√(2 aᵀΣa log n)"),
        (al.Laplace(2), "b·max|a_i|·log n"),
        (al.StudentT(2, df=3.0), "n^(1/3)"),
        (al.Mixture([0.5, 0.5], [al.Box(2), al.Gaussian(dim=2)]), "√(2 aᵀΣa log n)"),
    ],
)
def test_unbounded_laws_have_no_hardmax(law: al.Measure, growth: str) -> None:
    message = f"No hardmax limit.*largest of n scores grows like {re.escape(growth)}.*head.hardmax"
    with pytest.raises(al.LimitDoesNotExist, match=message):
        law.top([1.0, 0.0])


def test_top_of_an_unknown_support() -> None:
    law = Exponential()
    with pytest.raises(al.LimitDoesNotExist, match="largest of n scores grows without end"):
        law.top([1.0])
    law.radius = 1.0
    with pytest.raises(al.NotKnown, match=r"no closed form here; use head\.scaled"):
        law.top([1.0])
