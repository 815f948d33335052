import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnlimit.numerics import softmax
from attnlimit.numerics.softmax import Partial, attend, log_mean_exp, merge, tilted_covariance

DOUBLE = torch.float64


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def explicit(q: Tensor, k: Tensor, v: Tensor, log_weights: Tensor | None = None) -> Partial:
    scores = q @ k.mT + (0 if log_weights is None else log_weights)
    return Partial(scores.softmax(-1) @ v, scores.logsumexp(-1))


def assert_same(actual: Partial, expected: Partial, tolerance: float = 1e-13) -> None:
    torch.testing.assert_close(actual.mean, expected.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(actual.lse, expected.lse, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (DOUBLE, 1e-13)])
@pytest.mark.parametrize("heads", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("m", "n", "d", "dv"), [(1, 1, 1, 1), (5, 700, 3, 8), (600, 33, 8, 3), (0, 4, 2, 2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_attend(
    dtype: torch.dtype,
    tolerance: float,
    heads: tuple[int, ...],
    m: int,
    n: int,
    d: int,
    dv: int,
    weighted: bool,
    grad: bool,
) -> None:
    """The fused path and, where a gradient is wanted, the plain one."""
    q, k, v = (randn(*heads, *s, seed=i, dtype=dtype) for i, s in enumerate([(m, d), (n, d), (n, dv)]))
    log_weights = randn(n, seed=3, dtype=dtype) if weighted else None
    q.requires_grad_(grad)
    partial = attend(q, k, v, log_weights)
    assert partial.mean.requires_grad == grad
    assert_same(partial, explicit(q, k, v, log_weights), tolerance)


@pytest.mark.parametrize("grad", [False, True])
def test_keys_shared_by_heads_weights_of_zero_and_huge_scores(grad: bool) -> None:
    q, k, v = 1e6 * randn(3, 4, 2).requires_grad_(grad), randn(50, 2, seed=1), randn(50, 3, seed=2)
    log_weights = torch.zeros(50, dtype=DOUBLE).index_fill(0, torch.arange(20), -torch.inf)
    partial = attend(q, k, v, log_weights)
    assert_same(partial, explicit(q, k[20:], v[20:]))
    assert bool(partial.lse.isfinite().all())


def test_plain_path_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (randn(*s, seed=i) for i, s in enumerate([(2, 9, 3), (2, 7, 3), (2, 7, 4)]))
    whole = softmax._attend_plain(q, k, v, None), tilted_covariance(q, k, v, k)
    monkeypatch.setattr(softmax, "SCORES_AT_ONCE", 30)
    sliced = softmax._attend_plain(q, k, v, None), tilted_covariance(q, k, v, k)
    assert_same(sliced[0], whole[0])
    torch.testing.assert_close(sliced[1], whole[1])


@given(seed=st.integers(0, 2**31), cut=st.integers(1, 11), size=st.sampled_from([0.0, 1.0, 100.0, 1e6]))
def test_merging_two_blocks_is_attending_to_both(seed: int, cut: int, size: float) -> None:
    q, k, v = size * randn(2, 5, 3, seed=seed), randn(12, 3, seed=seed + 1), randn(12, 4, seed=seed + 2)
    both = merge(attend(q, k[:cut], v[:cut]), attend(q, k[cut:], v[cut:]))
    assert_same(both, attend(q, k, v), 1e-12 if size < 1e3 else 1e-9)
    backwards = merge(attend(q, k[cut:], v[cut:]), attend(q, k[:cut], v[:cut]))
    assert_same(backwards, both, 1e-12)


def test_covariance_against_explicit_sums() -> None:
    q, k, left, right = (randn(*s, seed=i) for i, s in enumerate([(2, 6, 3), (2, 9, 3), (9, 4), (2, 9, 5)]))
    log_weights = randn(9, seed=4)
    p = (q @ k.mT + log_weights).softmax(-1)
    products = torch.einsum("hmn,nl,hnr->hmlr", p, left, right)
    means = (p @ left)[..., :, None] * (p @ right)[..., None, :]
    actual = tilted_covariance(q, k, left, right, log_weights)
    torch.testing.assert_close(actual, products - means, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gap", [1.0, 30.0, 80.0, 300.0])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_covariance_keeps_its_relative_accuracy_when_one_key_takes_all(gap: float, offset: float) -> None:
    """Two keys, the second e^{−gap} times as heavy: p(1 − p)(l₁ − l₂)(r₁ − r₂)ᵀ, however small."""
    k = torch.tensor([[gap], [0.0]], dtype=DOUBLE)
    left = torch.tensor([[1.0, 2.0], [4.0, -1.0]], dtype=DOUBLE) + offset
    right = torch.tensor([[3.0], [0.5]], dtype=DOUBLE) - offset
    p = torch.tensor(-gap, dtype=DOUBLE).sigmoid()
    expected = p * (1 - p) * torch.tensor([[-7.5], [7.5]], dtype=DOUBLE)
    actual = tilted_covariance(torch.ones(1, 1, dtype=DOUBLE), k, left, right)[0]
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1e-4, 0.9, 1.1, 50.0, 1e6])
def test_log_mean_exp_of_equal_scores_is_that_score(size: float) -> None:
    weights = randn(7).softmax(0)
    for score in (size, -size):
        scores = torch.full((2, 7), score, dtype=DOUBLE)
        expected = torch.full((2,), score, dtype=DOUBLE)
        torch.testing.assert_close(log_mean_exp(scores, weights.log()), expected, rtol=1e-14, atol=0)


def test_log_mean_exp_ignores_weightless_scores() -> None:
    scores = torch.tensor([[0.25, 0.5, 0.75], [2.0, 3.0, 900.0]], dtype=DOUBLE)
    log_weights = torch.tensor([0.5, 0.5, 0.0], dtype=DOUBLE).log()
    expected = torch.logaddexp(scores[:, 0], scores[:, 1]) - torch.tensor(2.0, dtype=DOUBLE).log()
    torch.testing.assert_close(log_mean_exp(scores, log_weights), expected)
