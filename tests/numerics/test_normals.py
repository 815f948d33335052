"""White noise from a counter: known words, the law of the normals, and the compiled loop against numpy."""

import numpy as np
import pytest
import torch
from scipy import stats

from attnlimit.numerics import normals
from attnlimit.numerics.compiled import has_numba
from attnlimit.numerics.normals import FARTHEST, chebyshev, chi_of_normal, philox, white_key, white_rows


def noise(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return white_rows(rows, size, white_key(torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_words_are_those_that_the_authors_publish(counter: str, key: str, words: str) -> None:
    c, k, w = (np.array([int(one, 16) for one in text.split()], np.uint32) for text in (counter, key, words))
    assert philox(c, k).tolist() == w.tolist()


def test_a_seed_has_the_same_key_with_every_torch() -> None:
    assert white_key(torch.Generator().manual_seed(0)).tolist() == [398764591, 1478610112]


@pytest.mark.parametrize("compiled", [True, False])
def test_numbers_are_independent_standard_normals(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven tests at p < 1e-6: false-alarm rate about 1e-5. Pairs that share a length, neighbours and rows are compared."""
    if not compiled:
        monkeypatch.setattr(normals, "has_numba", lambda: False)
    x = noise(50, 4032).numpy().astype(float)
    assert stats.kstest(x.ravel(), "norm").pvalue > 1e-6
    assert stats.kstest((x**2).reshape(-1, 8).sum(1), stats.chi2(8).cdf).pvalue > 1e-6
    quarters = x.reshape(50, 4, 1008)
    pairs = [
        (quarters[:, 0], quarters[:, 1]),
        (quarters[:, 1], quarters[:, 2]),
        (x[1:], x[:-1]),
        (x[:, 1:], x[:, :-1]),
    ]
    for one, other in pairs:
        for f in (lambda v: v, lambda v: v**2):
            assert stats.pearsonr(f(one).ravel(), f(other).ravel()).pvalue > 1e-6
    radius = quarters[:, 0] ** 2 + quarters[:, 1] ** 2
    assert stats.kstest(radius.ravel(), stats.expon(scale=2).cdf).pvalue > 1e-6
    assert stats.kstest(1.04 * x.ravel(), "norm").pvalue < 1e-6  # a scale 4 % off would be noticed


@pytest.mark.skipif(not has_numba(), reason="numba is not installed")
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 5), (4, 1027), (2, 4096)])
def test_compiled_and_plain_numbers_are_the_same(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = noise(*shape)
    monkeypatch.setattr(normals, "has_numba", lambda: False)
    torch.testing.assert_close(compiled, noise(*shape), rtol=1e-5, atol=2e-6)


def test_keys_and_rows_differ_and_numbers_repeat() -> None:
    assert torch.equal(noise(4, 100), noise(4, 100))
    assert not torch.equal(noise(4, 100), noise(4, 100, seed=1))
    assert torch.equal(noise(4, 100)[:2], noise(2, 100))
    assert len(noise(4, 100).unique()) == 400


@pytest.mark.parametrize("k", [1, 2, 5, 10, 100, 10**6])
def test_a_bent_normal_is_chi(k: int) -> None:
    """Its distribution function against scipy's, and its moments by quadrature against E χ² = k, E χ⁴ = k(k + 2)."""
    terms = torch.from_numpy(chi_of_normal(np.array([k])))
    g = torch.linspace(-FARTHEST, FARTHEST, 20_001, dtype=torch.float64)
    chi = chebyshev(g[:, None] / FARTHEST, terms)[:, 0]
    assert bool((chi.diff() > -2e-8).all())
    inner = g.abs() < 5
    np.testing.assert_allclose(stats.chi.cdf(chi[inner], k), stats.norm.cdf(g[inner]), atol=2e-8)
    np.testing.assert_allclose(stats.chi.sf(chi[inner], k), stats.norm.sf(g[inner]), atol=2e-8)
    weight = torch.exp(-(g**2) / 2)
    square, fourth = ((chi**p * weight).sum() / weight.sum() for p in (2, 4))
    assert float(square) == pytest.approx(k, rel=1e-7)
    assert float(fourth) == pytest.approx(k * (k + 2), rel=1e-7)
