"""Linear attention against explicit sums, and against the softmax limit it shares with centred Gaussians."""

import pytest
import torch
from torch import Tensor

import attnlimit as al

DOUBLE = torch.float64


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


@pytest.mark.parametrize("heads", [(), (3,)])
@pytest.mark.parametrize("biases", [(), ("bq",), ("bk",), ("bv",), ("bq", "bk", "bv")], ids="+".join)
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_explicit_sum(heads: tuple[int, ...], biases: tuple[str, ...], weighted: bool) -> None:
    """Σ_j w_j v_j (k_jᵀq), with v_j = W_v y_j + b_v: the weights do not sum to one, so b_v is weighted too."""
    Wq, Wk, Wv = (randn(*heads, *s, seed=i) for i, s in enumerate([(4, 5), (4, 6), (2, 7)]))
    b = {
        name: randn(*heads, 2 if name == "bv" else 4, seed=3 + i)
        if name in biases
        else torch.zeros(*heads, 1, dtype=DOUBLE)
        for i, name in enumerate(("bq", "bk", "bv"))
    }
    x, keys, values = randn(8, 5, seed=6), randn(30, 6, seed=7), randn(30, 7, seed=8)
    w = randn(30, seed=9).softmax(0) if weighted else torch.full((30,), 1 / 30, dtype=DOUBLE)
    q = (x @ Wq.mT + b["bq"][..., None, :]) / 2
    k, v = keys @ Wk.mT + b["bk"][..., None, :], values @ Wv.mT + b["bv"][..., None, :]
    expected = (q @ k.mT * w) @ v
    head = al.Head.from_projections(Wq, Wk, Wv, **{name: b[name] for name in biases}).linear()
    map = head(al.Empirical(keys, values, w if weighted else None))
    torch.testing.assert_close(map(x), expected)
    torch.testing.assert_close(map(x), (map.jacobian(x) @ x[..., None])[..., 0] + map(0 * x))


def test_keeps_its_kind_when_scaled() -> None:
    head, tokens, x = al.Head(randn(3, 3)).linear(), al.Empirical(randn(9, 3, seed=1)), randn(2, 3, seed=2)
    torch.testing.assert_close(head.scaled(2.5)(tokens)(x), 2.5 * head(tokens)(x))


@pytest.mark.parametrize("cov", [0.7, [2.0, 0.0, 0.5], [[2.0, 0.3, -0.5], [0.3, 1.0, 0.1], [-0.5, 0.1, 0.7]]])
def test_is_the_softmax_limit_of_centred_gaussians(cov: object) -> None:
    head, law, x = al.Head(randn(3, 4), randn(2, 3, seed=1)), al.Gaussian(cov=cov, dim=3), randn(5, 4, seed=2)
    torch.testing.assert_close(head.linear()(law)(x), head(law)(x))
    torch.testing.assert_close(head.linear()(law).jacobian(x), head(law).jacobian(x))


def test_is_not_the_softmax_limit_otherwise() -> None:
    head, x = al.Head(randn(3, 3)), randn(5, 3, seed=2)
    for law in (al.Gaussian([1.0, 0.0, 0.0]), al.Sphere(3, radius=2.0)):
        assert float((head.linear()(law)(x) - head(law)(x)).norm()) > 0.1


def test_sees_heavy_tails_through_their_second_moment_alone() -> None:
    head, x = al.Head(randn(3, 3)), randn(5, 3, seed=2)
    torch.testing.assert_close(head.linear()(al.StudentT(3, df=4.0))(x), 2 * x @ head.A.T)
    with pytest.raises(al.LimitDoesNotExist, match="no covariance: it needs df > 2"):
        head.linear()(al.StudentT(3, df=1.5))(x)


def test_affine_form() -> None:
    head = al.Head.from_projections(
        randn(2, 4), randn(2, 3, seed=1), randn(5, 3, seed=2), bk=randn(2, seed=3)
    )
    map, x = head.linear()(al.Gaussian([1.0, 2.0, 3.0])), randn(6, 4, seed=4)
    W, b = map.affine()
    torch.testing.assert_close(map(x), x @ W.T + b)
    assert al.Head(randn(2, 3, 3)).linear()(al.Sphere(3)).affine() is None
