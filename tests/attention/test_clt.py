"""n tokens around the limit: the central limit theorem's covariance and bias, tested as statistics."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

import attnlimit as al

DOUBLE = torch.float64
FALSE_ALARM = 1e-6
"""Of each two-sided test below, were the seeds not fixed."""


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


LAWS = [
    al.Gaussian([0.5, -0.2, 0.1], [[0.5, 0.1, 0.0], [0.1, 0.8, -0.2], [0.0, -0.2, 0.3]]),
    al.Sphere(3, radius=1.2),
    al.Laplace(3, scale=0.3),
    al.Mixture([0.3, 0.7], [al.Gaussian([1.0, 0.0, 0.0], 0.2), al.Box(3)]),
]
HEAD = al.Head(0.5 * randn(3, 4), randn(3, 3, seed=1))
QUERY = randn(4, seed=2)
any_law = pytest.mark.parametrize("law", LAWS, ids=lambda m: type(m).__name__)


def finite_outputs(law: al.Measure, n: int = 2000, replicates: int = 800) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.stack([HEAD(law.sample(n, generator=generator))(QUERY) for _ in range(replicates)])


def accepts(outputs: Tensor, centre: Tensor, covariance: Tensor) -> tuple[bool, bool]:
    """Whether R independent outputs are N(centre, covariance): their mean, by R z̄ᵀz̄ ~ χ²_d, and their spread,
    by Σ zᵀz ~ χ²_{Rd}, z the standardised errors."""
    z = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (outputs - centre).T, upper=False).T
    mean = stats.chi2.sf(float(len(z) * z.mean(0).square().sum()), df=z.shape[1])
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=z.numel())
    return bool(mean > FALSE_ALARM), low < float(z.square().sum()) < high


@any_law
def test_tokens_are_spread_around_the_limit_as_the_theorem_says(law: al.Measure) -> None:
    n, clt, limit = 2000, al.clt(HEAD, law, QUERY), HEAD(law)(QUERY)
    outputs = finite_outputs(law, n)
    assert accepts(outputs, limit + clt.bias / n, clt.covariance / n) == (True, True)
    # The same tests reject a covariance that is a third too large or too small, and a limit that is half a
    # standard error away in one direction.
    assert not accepts(outputs, limit, 1.33 * clt.covariance / n)[1]
    assert not accepts(outputs, limit, clt.covariance / n / 1.33)[1]
    shift = torch.linalg.cholesky(clt.covariance)[:, 0] / 2 / n**0.5
    assert not accepts(outputs, limit + shift, clt.covariance / n)[0]


@any_law
def test_bias_is_that_of_few_tokens(law: al.Measure) -> None:
    """n(E Γ_n − Γ) by Monte Carlo. The linear part of the error, Σ w u/n of mean zero, is subtracted, which takes
    away most of the noise. 5.5 standard errors (4e-8 a coordinate), and 10/n_eff for the next order in 1/n."""
    n, replicates = 400, 20_000
    clt, limit, a = al.clt(HEAD, law, QUERY), HEAD(law)(QUERY), HEAD.A @ QUERY
    generator, residuals = torch.Generator().manual_seed(4), []
    for _ in range(10):
        tokens = law.sample(n * replicates // 10, generator=generator).tokens
        w = (tokens @ a - law.cgf(a)).exp().reshape(-1, n, 1)
        wu = w * (tokens @ HEAD.V.T - limit).reshape(-1, n, 3)
        residuals.append(wu.mean(1) / w.mean(1) - wu.mean(1))
    scaled = n * torch.cat(residuals)
    noise = 5.5 * scaled.std(0) / replicates**0.5
    tolerance = noise + 10 / float(clt.effective_tokens(n)) * clt.bias.norm()
    assert bool(((scaled.mean(0) - clt.bias).abs() < tolerance).all())
    assert float(clt.bias.norm()) > 4 * float(tolerance.max()), "the test could not tell the bias from zero"


@pytest.mark.parametrize("heads", [(), (2,)])
def test_from_tokens(heads: tuple[int, ...]) -> None:
    """n Σ p_j² (v_j − Γ)(v_j − Γ)ᵀ, written out."""
    A, V = 0.5 * randn(*heads, 3, 4), randn(*heads, 5, 2, seed=1)
    keys, values, x = randn(60, 3, seed=2), randn(60, 2, seed=3), randn(7, 4, seed=4)
    head, tokens = al.Head(A, V), al.Empirical(keys, values)
    p = (x @ A.mT @ keys.T).softmax(-1)
    u = values @ V.mT
    u = u[..., None, :, :] - (p @ u)[..., None, :]
    clt = al.clt(head, tokens, x)
    torch.testing.assert_close(clt.covariance, 60 * torch.einsum("...n,...ni,...nj->...ij", p**2, u, u))
    torch.testing.assert_close(clt.bias, -60 * torch.einsum("...n,...ni->...i", p**2, u))
    torch.testing.assert_close(clt.effective_tokens(60), 1 / p.square().sum(-1))


def test_gaussian_closed_form() -> None:
    """D = aᵀΣa, C = e^D V(Σ + Σa aᵀΣ)Vᵀ, bias −e^D VΣa, at several queries and heads."""
    A, V, x = 0.6 * randn(2, 3, 4), randn(2, 5, 3, seed=1), randn(6, 4, seed=2)
    S = LAWS[0].covariance
    clt = al.clt(al.Head(A, V), LAWS[0], x)
    push = x @ A.mT @ S
    D = (push * (x @ A.mT)).sum(-1)
    inner = S + push[..., :, None] * push[..., None, :]
    torch.testing.assert_close(clt.log_chi2, D)
    torch.testing.assert_close(
        clt.covariance, D.exp()[..., None, None] * (V[:, None] @ inner @ V[:, None].mT)
    )
    torch.testing.assert_close(clt.bias, -D.exp()[..., None] * (push @ V.mT))
    torch.testing.assert_close(clt.effective_tokens(1000), 1000 * (-D).exp())


def test_error_bars_need_thirty_effective_tokens() -> None:
    head, law = al.Head([[2.0]]), al.Gaussian(dim=1)
    clt = al.clt(head, law, [1.0])  # D = 4
    enough = math.ceil(30 * math.e**4)
    expected = math.sqrt(math.e**4 * 5 / enough)
    torch.testing.assert_close(clt.standard_error(enough), torch.tensor([expected], dtype=DOUBLE))
    message = (
        r"n = 1000 tokens count like 18\.3 \(n e\^\(−D\), D = 4\), and at least 30 are needed.*exact_error"
    )
    with pytest.raises(al.LimitDoesNotExist, match=message):
        clt.standard_error(1000)
    with pytest.raises(al.LimitDoesNotExist, match="No error bar"):
        clt.standard_error(enough - 1)
    with pytest.raises(al.InputError, match="n must be a whole number of at least 1, got 0"):
        clt.effective_tokens(0)


def test_covariances_beyond_the_range_of_floats_are_refused() -> None:
    clt = al.clt(al.Head([[1.0]]), al.Gaussian(dim=1), [30.0])
    assert float(clt.log_chi2) == 900
    assert float(clt.shape) == 1 + 30**2
    for quantity in ("covariance", "bias"):
        with pytest.raises(al.LimitDoesNotExist, match=r"covariance overflows: e\^D with D = 900.*n ≫ e\^D"):
            getattr(clt, quantity)


def test_a_limit_without_a_variance() -> None:
    """Laplace at 1/2 < b|a| < 1: Λ(a) is finite and Λ(2a) is not."""
    head, law = al.Head([[1.0]]), al.Laplace(1)
    assert bool(head(law)([0.6]).isfinite().all())
    with pytest.raises(
        al.LimitDoesNotExist, match=r"Λ\(2a\) is infinite for Laplace.*no finite variance.*kappa ≤ 1/2"
    ):
        al.clt(head, law, [0.6])
    al.clt(head.scaled(0.5), law, [0.6])
    with pytest.raises(al.LimitDoesNotExist, match="infinite cumulant generating function"):
        al.clt(head, law, [1.5])
    with pytest.raises(al.LimitDoesNotExist, match="infinite cumulant generating function"):
        al.clt(head, al.StudentT(1, df=3.0), [0.1])


def test_a_head_that_does_not_fit_is_refused() -> None:
    with pytest.raises(al.InputError, match="reads 1-dimensional keys"):
        al.clt(al.Head([[1.0]]), al.Gaussian(dim=2), [1.0])
    with pytest.raises(al.InputError, match=r"queries must have shape \(\*batch, 1\), got \(2,\)"):
        al.clt(al.Head([[1.0]]), al.Gaussian(dim=1), [1.0, 2.0])


def test_result_is_plain_and_linear_heads_are_refused():
    head, law = al.Head([[1.0]]), al.Gaussian(dim=1)
    result = al.clt(head, law, [[1.0], [0.5]])
    assert repr(result) == "CLT(2 queries, log χ² up to 1)"
    assert result.to_dict()["covariance"] == result.covariance.tolist()
    with pytest.raises(al.InputError, match="not a softmax"):
        al.clt(head.linear(), law, [[1.0]])
