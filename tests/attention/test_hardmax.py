"""Hardmax maps: of tokens, and of laws whose support has a top."""

import pytest
import torch

import attnlimit as al

DOUBLE = torch.float64


def test_tokens_give_the_value_of_the_best_key() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, values, x = (
        torch.randn(*s, generator=generator, dtype=DOUBLE) for s in [(50, 3), (50, 2), (20, 4)]
    )
    A, V = (
        torch.randn(3, 4, generator=generator, dtype=DOUBLE),
        torch.randn(5, 2, generator=generator, dtype=DOUBLE),
    )
    best = (x @ A.T @ tokens.T).argmax(-1)
    map = al.Head(A, V).hardmax(al.Empirical(tokens, values))
    torch.testing.assert_close(map(x), values[best] @ V.T)
    assert repr(map).startswith("HardmaxMap(Head(4-d queries")


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_ties_are_averaged(scale: float) -> None:
    """The first two tokens coincide, and tie with the third along the diagonal; 0.1·3 is not 0.3."""
    tokens = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=DOUBLE)
    values = torch.tensor([[0.0], [3.0], [9.0], [100.0]], dtype=DOUBLE)
    head = al.Head(scale * torch.eye(2, dtype=DOUBLE))
    x = torch.tensor([[1.0, 0.0], [0.3, 3 * 0.1], [0.0, 1.0], [0.0, 0.0]], dtype=DOUBLE)
    expected = torch.tensor([[1.5], [4.0], [9.0], [28.0]], dtype=DOUBLE)
    torch.testing.assert_close(head.hardmax(al.Empirical(tokens, values))(x), expected)
    weights = torch.tensor([0.1, 0.3, 0.4, 0.2], dtype=DOUBLE)
    expected = torch.tensor([[2.25], [5.625], [9.0], [24.5]], dtype=DOUBLE)
    torch.testing.assert_close(head.hardmax(al.Empirical(tokens, values, weights))(x), expected)


@pytest.mark.parametrize(
    "law",
    [
        al.Sphere(3, radius=2.0),
        al.Ball(3),
        al.Box(3),
        al.Rademacher(3),
        al.Mixture([0.2, 0.8], [al.Sphere(3, radius=3.0), al.Rademacher(3)]),
    ],
)
def test_the_limit_is_approached_by_many_tokens_and_by_large_scores(law: al.Measure) -> None:
    generator = torch.Generator().manual_seed(1)
    A, V, bv = (torch.randn(*s, generator=generator, dtype=DOUBLE) for s in [(3, 4), (2, 3), (2,)])
    head = al.Head.from_projections(A, torch.eye(3, dtype=DOUBLE), V, bv=bv, scale=1.0)
    x = torch.randn(6, 4, generator=generator, dtype=DOUBLE)
    limit = head.hardmax(law)(x)
    assert limit.shape == (6, 2)
    torch.testing.assert_close(head.scaled(1e7)(law)(x), limit, rtol=0, atol=1e-5)
    tokens = law.sample(200_000, generator=2)
    torch.testing.assert_close(head.hardmax(tokens)(x), limit, rtol=0, atol=0.2)


def test_unbounded_laws_have_no_limit() -> None:
    head = al.Head(torch.eye(2, dtype=DOUBLE))
    map = head.hardmax(al.Gaussian(cov=[1.0, 0.0]))
    with pytest.raises(
        al.LimitDoesNotExist, match=r"is unbounded, and the largest of n scores grows like √\(2 aᵀΣa log n"
    ):
        map([1.0, 0.0])
    torch.testing.assert_close(map([0.0, 3.0]), torch.zeros(2, dtype=DOUBLE))  # no spread in that direction
    assert head.hardmax(al.Gaussian(dim=2).sample(9, generator=0))([1.0, 0.0]).shape == (2,)
