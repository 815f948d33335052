"""Finite maps against torch's own attention, and the derivatives of all maps against autograd and differences."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnlimit as al

DOUBLE = torch.float64
HEADS = [(), (3,), (2, 3)]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))


def projections(
    heads: tuple[int, ...], dtype: torch.dtype = DOUBLE, biases: bool = True
) -> dict[str, Tensor]:
    """5-d queries and 6-d keys to 4 dimensions, 7-d values to 2."""
    shapes = {"Wq": (4, 5), "Wk": (4, 6), "Wv": (2, 7)}
    shapes |= {"bq": (4,), "bk": (4,), "bv": (2,)} if biases else {}
    return {name: randn(*heads, *s, seed=i, dtype=dtype) for i, (name, s) in enumerate(shapes.items())}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (DOUBLE, 1e-14)])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_equals_torch_attention(
    dtype: torch.dtype,
    tolerance: float,
    heads: tuple[int, ...],
    biases: bool,
    weighted: bool,
    scale: float | None,
) -> None:
    p = projections(heads, dtype, biases)
    x, keys, values = (randn(*s, seed=9 + i, dtype=dtype) for i, s in enumerate([(8, 5), (50, 6), (50, 7)]))
    weights = randn(50, seed=20, dtype=dtype).softmax(0) if weighted else None
    q, k, v = x @ p["Wq"].mT, keys @ p["Wk"].mT, values @ p["Wv"].mT
    if biases:
        q, k, v = (t + p[b][..., None, :] for t, b in ((q, "bq"), (k, "bk"), (v, "bv")))
    mask = None if weights is None else weights.log().expand(8, 50)
    batch = (1,) * (2 - len(heads))
    expected = scaled_dot_product_attention(
        *(t.reshape(*batch, *t.shape) for t in (q, k, v)), attn_mask=mask, scale=scale
    ).reshape(*heads, 8, 2)
    head = al.Head.from_projections(**p, scale=scale)
    actual = head(al.Empirical(keys, values, weights))(x)
    assert actual.dtype == dtype
    assert_close(actual, expected, tolerance)


def test_large_single_precision_map_equals_torch_attention() -> None:
    x, keys = randn(200, 64, dtype=torch.float32), randn(5000, 64, seed=1, dtype=torch.float32)
    head = al.Head(torch.eye(64) / 8)
    expected = scaled_dot_product_attention(x[None], keys[None], keys[None])[0]
    assert_close(head(al.Empirical(keys))(x), expected, 2e-6)


def plain(A: Tensor, V: Tensor, x: Tensor, keys: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    return V @ (((keys @ (A @ x)).exp() * weights) @ values) / ((keys @ (A @ x)).exp() @ weights)


@pytest.mark.parametrize("low_rank", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
def test_token_derivatives_equal_autograd(low_rank: bool, narrow: bool) -> None:
    """For V that narrows the values (applied before the softmax) and V that widens them (applied after)."""
    p = projections((), biases=False)
    p["Wv"] = randn(2 if narrow else 9, 7, seed=5)
    A = 0.5 * p["Wk"].T @ p["Wq"]
    head = al.Head.from_projections(**p, scale=0.5) if low_rank else al.Head(A, p["Wv"])
    keys, values, weights = randn(30, 6, seed=6), randn(30, 7, seed=7), randn(30, seed=8).softmax(0)
    x, E, F = randn(3, 5, seed=9), randn(6, 5, seed=10), randn(*p["Wv"].shape, seed=11)
    map = head(al.Empirical(keys, values, weights))
    for i in range(3):
        rest = (keys, values, weights)
        in_A, in_V, in_x = torch.func.jacrev(plain, argnums=(0, 1, 2))(A, p["Wv"], x[i], *rest)
        assert_close(map(x)[i], plain(A, p["Wv"], x[i], *rest))
        assert_close(map.jacobian(x)[i], in_x)
        assert_close(map.derivative_A(x, E)[i], (in_A * E).sum((-2, -1)))
        assert_close(map.derivative_V(x, F)[i], (in_V * F).sum((-2, -1)))


def test_gradients_flow_through_the_map() -> None:
    A, tokens = randn(3, 3).requires_grad_(), randn(20, 3, seed=1)
    x, V, weights = randn(3, seed=2), torch.eye(3, dtype=DOUBLE), torch.full((20,), 0.05, dtype=DOUBLE)
    al.Head(A)(al.Empirical(tokens))(x).sum().backward()
    expected = torch.func.grad(lambda A: plain(A, V, x, tokens, tokens, weights).sum())(A.detach())
    assert_close(A.grad, expected)


LAWS: list[al.Measure] = [
    al.Gaussian([0.5, -0.2, 0.1], [[2.0, 0.3, -0.5], [0.3, 1.0, 0.1], [-0.5, 0.1, 0.7]]),
    al.Sphere(3, radius=1.5),
    al.Box(3),
    al.Laplace(3, scale=0.05),
    al.Mixture([0.3, 0.7], [al.Gaussian(dim=3), al.Ball(3)]),
    al.Empirical(randn(12, 3, seed=3)),
    al.FromSampler(lambda u: u.square(), dim=3, points=256, scrambles=4),
]


def difference(f: Callable[[float], Tensor], h: float = 5e-4) -> Tensor:
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


@pytest.mark.parametrize("measure", LAWS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("linear", [False, True])
def test_derivatives_equal_finite_differences(
    measure: al.Measure, heads: tuple[int, ...], linear: bool
) -> None:
    A, V = 0.4 * randn(*heads, 3, 4), randn(*heads, 2, 3, seed=1)
    x, dx, dA, dV = (
        randn(5, 4, seed=2),
        randn(4, seed=3),
        randn(*heads, 3, 4, seed=4),
        randn(*heads, 2, 3, seed=5),
    )

    def head(A: Tensor, V: Tensor) -> al.Head:
        return al.Head(A, V).linear() if linear else al.Head(A, V)

    map = head(A, V)(measure)
    assert_close(map.jacobian(x) @ dx, difference(lambda h: map(x + h * dx)), 1e-9)
    assert_close(map.derivative_A(x, dA), difference(lambda h: head(A + h * dA, V)(measure)(x)), 1e-9)
    assert_close(map.derivative_V(x, dV), difference(lambda h: head(A, V + h * dV)(measure)(x)), 1e-9)
    assert map.jacobian(x).shape == (*heads, 5, 2, 4)


@pytest.mark.parametrize("measure", LAWS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("linear", [False, True])
def test_jacobian_of_projections_with_biases(measure: al.Measure, linear: bool) -> None:
    p = {name: 0.5 * t for name, t in projections((2,)).items()}
    p["Wk"], p["Wv"] = p["Wk"][..., :3], p["Wv"][..., :3]
    head = al.Head.from_projections(**p)
    map = (head.linear() if linear else head)(measure)
    x, dx = randn(2, 3, 5, seed=2), randn(5, seed=3)
    assert_close(map.jacobian(x) @ dx, difference(lambda h: map(x + h * dx)), 1e-9)


@pytest.mark.parametrize("measure", LAWS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("heads", HEADS)
def test_projections_equal_the_dense_head(measure: al.Measure, heads: tuple[int, ...]) -> None:
    Wq, Wk, Wv = (randn(*heads, *s, seed=i) / 2 for i, s in enumerate([(2, 4), (2, 3), (5, 3)]))
    factored = al.Head.from_projections(Wq, Wk, Wv)
    dense = al.Head(Wk.mT @ Wq / 2**0.5, Wv)
    x, E = randn(6, 4, seed=7), randn(*heads, 3, 4, seed=8)
    assert_close(factored.A, dense.A)
    for quantity in (
        lambda h: h(measure)(x),
        lambda h: h(measure).jacobian(x),
        lambda h: h(measure).cross_cov(x),
        lambda h: h(measure).derivative_A(x, E),
        lambda h: h.linear()(measure)(x),
    ):
        assert_close(quantity(factored), quantity(dense))


def test_low_rank_heads_make_no_square_matrix() -> None:
    """A would be 100,000 × 100,000."""
    Wq, Wk, Wv = (randn(4, 100_000, seed=i) / 300 for i in range(3))
    head = al.Head.from_projections(Wq, Wk, Wv)
    x = randn(2, 100_000, seed=3)
    expected = 0.5 * (x @ Wq.T @ Wk) @ Wv.T  # the limit of N(0, I) is V A x
    assert_close(head(al.Gaussian(cov=1.0, dim=100_000))(x), expected)
    assert head(al.Empirical(randn(10, 100_000, seed=4))).jacobian(x[0]).shape == (4, 100_000)


@pytest.mark.parametrize("batch", [(), (1,), (0,), (2, 3), (4, 1, 2)])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("measure", [al.Sphere(3), al.Empirical(randn(6, 3))], ids=["law", "tokens"])
def test_shapes(batch: tuple[int, ...], heads: tuple[int, ...], measure: al.Measure) -> None:
    head = al.Head(randn(*heads, 3, 4), randn(*heads, 5, 3))
    x = randn(*batch, 4)
    for map in (head(measure), head.linear()(measure)):
        assert map(x).shape == (*heads, *batch, 5)
        assert map.jacobian(x).shape == (*heads, *batch, 5, 4)
        assert map.cross_cov(x).shape == (*heads, *batch, 5, 3)
        assert map.derivative_A(x, randn(*heads, 3, 4)).shape == (*heads, *batch, 5)
        assert map.derivative_V(x, randn(*heads, 5, 3)).shape == (*heads, *batch, 5)
    assert head.hardmax(measure)(x).shape == (*heads, *batch, 5)


@pytest.mark.parametrize("heads", HEADS)
def test_heads_one_by_one(heads: tuple[int, ...]) -> None:
    head, x, tokens = al.Head.from_projections(**projections(heads)), randn(4, 5, seed=7), randn(9, 6, seed=8)
    measure = al.Empirical(tokens, randn(9, 7, seed=9))
    apart = torch.stack([one(measure)(x) for one in head.each()])
    assert_close(apart.reshape(*heads, 4, 2), head(measure)(x))


def test_repr_is_short() -> None:
    head = al.Head.from_projections(randn(2, 4, 5), randn(2, 4, 6), randn(2, 3, 6))
    assert repr(head) == "Head(2 heads, 5-d queries, 6-d keys, rank 4, 3-d values)"
    assert repr(al.Head(randn(2, 3))) == "Head(3-d queries, 2-d keys, identity values)"
    assert repr(head(al.Sphere(6))) == f"LimitMap({head!r}, Sphere(dim=6, radius=1))"
