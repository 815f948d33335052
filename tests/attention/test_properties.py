"""What attention must satisfy for any tokens, weights, heads and queries."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import attnlimit as al

DOUBLE = torch.float64


@dataclass
class Case:
    """Random tokens, values, weights, head and queries; scores are of the order of `size`."""

    seed: int
    n: int
    d: int
    size: float

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def randn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=DOUBLE)

        self.randn = randn
        self.tokens, self.values, self.x = randn(self.n, self.d), randn(self.n, 3), randn(4, self.d)
        self.weights = randn(self.n).softmax(0)
        self.A, self.V = self.size * randn(self.d, self.d) / self.d, randn(2, 3)
        self.head = al.Head(self.A, self.V)

    def rotation(self) -> Tensor:
        return torch.linalg.qr(self.randn(self.d, self.d)).Q

    def measure(self) -> al.Empirical:
        return al.Empirical(self.tokens, self.values, self.weights)

    def same(self, actual: Tensor, expected: Tensor) -> None:
        """Equal up to the rounding of scores, 1e-15 of their size (at most 100·size·|token||query|)."""
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12 * (1 + self.size))


cases = st.builds(
    Case,
    seed=st.integers(0, 2**31),
    n=st.integers(1, 40),
    d=st.integers(1, 6),
    size=st.sampled_from([0.0, 0.1, 1.0, 10.0, 100.0]),
)


@given(cases)
def test_the_order_of_tokens_does_not_matter(case: Case) -> None:
    order = case.randn(case.n).argsort()
    shuffled = al.Empirical(case.tokens[order], case.values[order], case.weights[order])
    case.same(case.head(shuffled)(case.x), case.head(case.measure())(case.x))
    case.same(case.head(shuffled).jacobian(case.x), case.head(case.measure()).jacobian(case.x))
    case.same(case.head.hardmax(shuffled)(case.x), case.head.hardmax(case.measure())(case.x))


@given(cases, st.floats(0, 1))
def test_an_atom_can_be_split(case: Case, share: float) -> None:
    """The first token in two, at the same place, its mass shared between them."""
    parts = case.weights[:1] * torch.tensor([share, 1 - share], dtype=DOUBLE)
    split = al.Empirical(
        torch.cat([case.tokens[:1], case.tokens]),
        torch.cat([case.values[:1], case.values]),
        torch.cat([parts, case.weights[1:]]),
    )
    whole = case.measure()
    case.same(case.head(split)(case.x), case.head(whole)(case.x))
    case.same(case.head(split).jacobian(case.x), case.head(whole).jacobian(case.x))
    case.same(case.head.hardmax(split)(case.x), case.head.hardmax(whole)(case.x))
    case.same(split.cgf(case.x @ case.A.T), whole.cgf(case.x @ case.A.T))


@given(cases)
def test_equal_weights_are_no_weights(case: Case) -> None:
    weights = torch.full((case.n,), 1 / case.n, dtype=DOUBLE)
    with_weights = al.Empirical(case.tokens, case.values, weights)
    case.same(case.head(with_weights)(case.x), case.head(al.Empirical(case.tokens, case.values))(case.x))


@given(cases)
def test_a_shift_of_all_scores_does_not_matter(case: Case) -> None:
    """A vector c added to all keys adds cᵀAx to all scores of a query; to all values, V c to all outputs."""
    c, e = case.randn(case.d), case.randn(3)
    moved = al.Empirical(case.tokens + c, case.values + e, case.weights)
    case.same(case.head(moved)(case.x), case.head(case.measure())(case.x) + case.V @ e)
    case.same(case.head(moved).jacobian(case.x), case.head(case.measure()).jacobian(case.x))


@given(cases)
def test_key_biases_do_not_matter(case: Case) -> None:
    Wq, Wk, bq, bk, bv = (case.randn(*s) for s in [(2, case.d), (2, case.d), (2,), (2,), (2,)])
    without = al.Head.from_projections(Wq, Wk, case.V, bq=bq, bv=bv)
    with_bias = al.Head.from_projections(Wq, Wk, case.V, bq=bq, bk=100 * bk, bv=bv)
    assert torch.equal(with_bias(case.measure())(case.x), without(case.measure())(case.x))


@given(cases)
def test_outputs_are_in_the_convex_hull_of_the_values(case: Case) -> None:
    """In every direction u, uᵀΓ is between the least and the largest uᵀVv."""
    u = case.randn(2, 50)
    sides = case.values @ case.V.T @ u
    for map in (case.head(case.measure()), case.head.hardmax(case.measure())):
        out = map(case.x) @ u
        assert bool((out <= sides.amax(0) + 1e-12).all())
        assert bool((out >= sides.amin(0) - 1e-12).all())


@given(cases)
def test_rotated_tokens_and_queries_give_rotated_outputs(case: Case) -> None:
    """For scores κ yᵀx, which a rotation of both leaves alone."""
    R, head = case.rotation(), al.Head(case.size * torch.eye(case.d, dtype=DOUBLE))
    rotated = head(al.Empirical(case.tokens @ R.T))(case.x @ R.T)
    case.same(rotated, head(al.Empirical(case.tokens))(case.x) @ R.T)


@given(cases, st.sampled_from(["sphere", "ball", "gaussian"]))
def test_laws_that_rotations_leave_alone_give_rotated_limits(case: Case, name: str) -> None:
    R, head = case.rotation(), al.Head(case.size * torch.eye(case.d, dtype=DOUBLE))
    laws = {"sphere": al.Sphere(case.d), "ball": al.Ball(case.d), "gaussian": al.Gaussian(dim=case.d)}
    case.same(head(laws[name])(case.x @ R.T), head(laws[name])(case.x) @ R.T)


@given(cases)
def test_rotating_the_basis_changes_nothing(case: Case) -> None:
    """Tokens Ry, queries Sx and matrix RASᵀ."""
    R, S = case.rotation(), case.rotation()
    head = al.Head(R @ case.A @ S.T, case.V)
    rotated = al.Empirical(case.tokens @ R.T, case.values, case.weights)
    case.same(head(rotated)(case.x @ S.T), case.head(case.measure())(case.x))


@given(cases)
def test_several_heads_are_single_heads_stacked(case: Case) -> None:
    A, V = case.size * case.randn(3, case.d, case.d) / case.d, case.randn(3, 2, 3)
    E, F = case.randn(3, case.d, case.d), case.randn(3, 2, 3)
    together = al.Head(A, V)(case.measure())
    apart = [al.Head(a, v)(case.measure()) for a, v in zip(A, V, strict=True)]
    case.same(together(case.x), torch.stack([map(case.x) for map in apart]))
    case.same(together.jacobian(case.x), torch.stack([map.jacobian(case.x) for map in apart]))
    in_A = [map.derivative_A(case.x, e) for map, e in zip(apart, E, strict=True)]
    in_V = [map.derivative_V(case.x, f) for map, f in zip(apart, F, strict=True)]
    case.same(together.derivative_A(case.x, E), torch.stack(in_A))
    case.same(together.derivative_V(case.x, F), torch.stack(in_V))


@given(cases, st.floats(0.01, 50))
def test_scaling_the_head_scales_the_scores(case: Case, kappa: float) -> None:
    Wq, Wk, bq = case.randn(2, case.d), case.randn(2, case.d), case.randn(2)
    dense = al.Head(kappa * case.A, case.V)
    factored = al.Head.from_projections(Wq, Wk, case.V, bq=bq, scale=kappa)
    case.same(case.head.scaled(kappa)(case.measure())(case.x), dense(case.measure())(case.x))
    scaled = al.Head.from_projections(Wq, Wk, case.V, bq=bq, scale=1.0).scaled(kappa)
    torch.testing.assert_close(
        scaled(case.measure())(case.x), factored(case.measure())(case.x), atol=1e-9, rtol=0
    )
    law = al.Box(case.d)
    case.same(al.Head(case.A).scaled(kappa)(law)(case.x), al.Head(kappa * case.A)(law)(case.x))


@given(cases)
def test_a_law_of_atoms_is_the_tokens(case: Case) -> None:
    """Point masses as degenerate Gaussians in a mixture: the limit map is the token map."""
    atoms = al.Mixture(case.weights, [al.Gaussian(token, 0.0) for token in case.tokens])
    tokens = al.Empirical(case.tokens, weights=case.weights)
    head = al.Head(case.A)
    case.same(head(atoms)(case.x), head(tokens)(case.x))
    case.same(head(atoms).jacobian(case.x), head(tokens).jacobian(case.x))
    case.same(head.hardmax(tokens)(case.x), head.hardmax(al.Mixture([1.0], [tokens]))(case.x))


@pytest.mark.parametrize("kappa", [1e4, 1e7])
def test_a_large_scale_is_hardmax(kappa: float) -> None:
    case = Case(seed=0, n=40, d=4, size=1.0)
    case.same(case.head.scaled(kappa)(case.measure())(case.x), case.head.hardmax(case.measure())(case.x))
