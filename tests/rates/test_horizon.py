"""The horizon against dense matrices, closed forms and the scores of drawn tokens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlimit import Empirical, FromSampler, Gaussian, Head, Measure, Rademacher, Sphere, StudentT
from attnlimit.errors import InputError, LimitDoesNotExist
from attnlimit.rates import horizon
from attnlimit.rates.horizon import top_horizon


def random_cov(d: int, rng: np.random.Generator) -> np.ndarray:
    half = rng.standard_normal((d, d))
    return half @ half.T / d


def root(cov: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(cov)
    return (vectors * np.sqrt(values.clip(0))) @ vectors.T


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**31))
def test_low_rank_matches_dense(dk: int, dq: int, r: int, seed: int) -> None:
    """All three kinds, from factors and from a dense A, against numpy's norms of the formed matrices."""
    rng = np.random.default_rng(seed)
    Wq, Wk = rng.standard_normal((r, dq)), rng.standard_normal((r, dk))
    keys, queries = random_cov(dk, rng), random_cov(dq, rng)
    A = Wk.T @ Wq / math.sqrt(r)
    basis = np.linalg.svd(A)[2][: np.linalg.matrix_rank(A)]
    projector = basis.T @ basis
    truth = {
        "two-sided": np.linalg.norm(root(keys) @ A @ root(queries), 2),
        "one-sided": np.linalg.norm(root(keys) @ A, 2),
        "row-space": np.linalg.eigvalsh(projector @ queries @ projector).max(),
    }
    law, asked = Gaussian(cov=keys), Gaussian(cov=queries)
    for head in (Head.from_projections(Wq, Wk), Head(A)):
        for kind, value in truth.items():
            assert horizon(head, law, kind, queries=asked) == pytest.approx(value, rel=1e-6, abs=1e-9)


def test_published_product_form(generator: torch.Generator) -> None:
    """H² = λ_max((QΣQᵀ)(KΣKᵀ))/d_h, per head."""
    Wq, Wk = torch.randn(2, 3, 4, 7, generator=generator, dtype=torch.float64).unbind(0)
    cov = torch.rand(7, generator=generator, dtype=torch.float64)
    H = horizon(Head.from_projections(Wq, Wk), Gaussian(cov=cov))
    assert isinstance(H, torch.Tensor)
    for h in range(3):
        product = (Wq[h] * cov) @ Wq[h].T @ (Wk[h] * cov) @ Wk[h].T / 4
        assert float(H[h]) ** 2 == pytest.approx(float(torch.linalg.eigvals(product).real.max()), rel=1e-12)


def test_symmetric_problem_has_the_general_eigenvalues(generator: torch.Generator) -> None:
    """Batched, singular covariances included (rank 3 in R^5), one key covariance for two query heads."""
    tokens = torch.randn(2, 4, 3, 5, generator=generator, dtype=torch.float64)
    queries, keys = tokens.mT @ tokens
    keys = keys[:2].repeat_interleave(2, 0)
    general = torch.linalg.eigvals(queries @ keys).real.amax(-1).sqrt()
    torch.testing.assert_close(top_horizon(queries, keys, 0.25), 0.25 * general, rtol=1e-12, atol=0)
    torch.testing.assert_close(top_horizon(queries, keys[0]), top_horizon(queries, keys[:1].expand(4, 5, 5)))
    assert float(top_horizon(torch.zeros(2, 2), torch.eye(2))) == 0.0


def test_is_the_spread_of_scores() -> None:
    """Rank one: scores of query x have standard deviation H|g|, g standard normal (false alarm < 1e-4)."""
    law = Gaussian(cov=[[2.0, 0.6], [0.6, 0.5]])
    head = Head([[0.5, -0.2], [1.0, -0.4]])
    tokens = law.sample(100_000, generator=0).tokens
    s = law.apply_root(head.score_vector(tokens)).norm(dim=-1)
    H = horizon(head, law)
    # the estimate of E s² = H² has relative standard error √(2/100 000) = 0.45 %
    assert float(s.square().mean()) == pytest.approx(H**2, rel=4 * 0.0045)


@pytest.mark.parametrize(
    "law", [Gaussian(cov=0.25, dim=300_000), Gaussian(cov=torch.full((300_000,), 0.25).double())]
)
def test_wide_heads_make_no_square_matrix(law: Gaussian) -> None:
    """300,000 dimensions: a d × d matrix would take 720 GB. Orthogonal rows give H = ‖·‖ of a diagonal."""
    W = torch.zeros(2, 300_000, dtype=torch.float64)
    W[0, 0], W[1, 299_999] = 2.0, 3.0
    head = Head.from_projections(W, W, scale=1.0)
    assert horizon(head, law) == pytest.approx(9 * 0.25)
    assert horizon(head, law, "one-sided") == pytest.approx(9 * 0.5)
    assert horizon(head, law, "row-space") == pytest.approx(0.25)


def test_wide_tokens_make_no_square_matrix() -> None:
    tokens = torch.zeros(4, 300_000, dtype=torch.float64)
    tokens[0, 0], tokens[1, 0] = 1.0, -1.0  # variance 1/2 along the first axis
    W = torch.zeros(1, 300_000, dtype=torch.float64)
    W[0, 0] = 3.0
    assert horizon(Head.from_projections(W, W, scale=1.0), Empirical(tokens)) == pytest.approx(4.5)


def test_isotropic_laws() -> None:
    """Sphere: Σ = R²/d I; Rademacher: Σ = I; the norm of A is 3."""
    head = Head(torch.diag(torch.tensor([3.0, 1.0, 0.5])).double())
    assert horizon(head, Sphere(3, radius=2.0)) == pytest.approx(3 * 4 / 3)
    assert horizon(head, Rademacher(3)) == pytest.approx(3.0)
    assert horizon(head, StudentT(3, df=4.0)) == pytest.approx(6.0)
    assert horizon(head.scaled(2.0), Rademacher(3)) == pytest.approx(6.0)


def test_horizon_reads_keys_not_values(generator: torch.Generator) -> None:
    """Weighted keys with values of their own: the covariance is that of the keys."""
    keys = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(50, generator=generator, dtype=torch.float64)
    weights = weights / weights.sum()
    population = Empirical(keys, values=torch.zeros(50, 3, dtype=torch.float64), weights=weights)
    cov = np.cov(keys.numpy().T, aweights=weights.numpy(), ddof=0)
    A = np.array([[1.0, 0.3], [-0.2, 2.0]])
    truth = np.linalg.norm(root(cov) @ A @ root(cov), 2)
    assert horizon(Head(A), population) == pytest.approx(truth, rel=1e-10)
    assert horizon(Head(A), Gaussian(cov=cov)) == pytest.approx(truth, rel=1e-10)


def test_single_precision_and_zero_heads() -> None:
    A = torch.stack([torch.zeros(2, 2), torch.eye(2)])
    H = horizon(Head(A), Gaussian(cov=torch.tensor(0.5), dim=2))
    assert isinstance(H, torch.Tensor)
    assert H.dtype == torch.float32
    assert H.tolist() == pytest.approx([0.0, 0.5])
    assert horizon(Head([[0.0]]), Gaussian(cov=1.0, dim=1), "row-space") == 0.0


def test_refusals() -> None:
    head = Head([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(
        InputError, match="kind must be one of 'two-sided', 'one-sided', 'row-space', got 'both'"
    ):
        horizon(head, Gaussian(cov=1.0, dim=2), kind="both")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"reads 3-dimensional queries.*give the law of the queries"):
        horizon(Head(torch.ones(2, 3).double()), Gaussian(cov=1.0, dim=2))
    with pytest.raises(InputError, match="reads 2-dimensional keys"):
        horizon(head, Gaussian(cov=1.0, dim=3))
    with pytest.raises(LimitDoesNotExist, match="has no covariance: it needs df > 2"):
        horizon(head, StudentT(2, df=2.0))
    with pytest.raises(LimitDoesNotExist, match="No horizon: the covariance of"):
        horizon(Head([[1.0]]), Endless(dim=1))


class Endless(Measure):
    """A law whose second moment is infinite and which says so."""

    def _cgf(self, a: torch.Tensor) -> torch.Tensor:
        return a[..., 0]

    @property
    def covariance(self) -> torch.Tensor:
        return torch.full((1, 1), math.inf, dtype=torch.float64)


def test_sampled_law_uses_its_points() -> None:
    """Squares of uniforms have variance 1/5 − 1/9 = 4/45; 512 Sobol points find it to 1e-3."""
    law = FromSampler(lambda u: u.square(), dim=1, points=256, scrambles=2)
    assert horizon(Head([[45.0]]), law) == pytest.approx(4.0, rel=1e-3)
