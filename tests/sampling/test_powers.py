"""Tensor powers against the plain sums they stand for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss

from attnlimit.sampling.reference import Power, gaussian_moment


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _plain(y: torch.Tensor, power: Power) -> torch.Tensor:
    if not power.full:
        return y**power.order
    letters = "abcd"[: power.order]
    return torch.einsum(",".join("i" + c for c in letters) + "->i" + letters, *[y] * power.order).flatten(1)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_powers_totals_and_differences(order: int, full: bool) -> None:
    power, y, g, w = Power(order, full), _normal(11, 3), _normal(11, 3, seed=1), _normal(11, seed=2).abs()
    fy, fg = _plain(y, power), _plain(g, power)
    torch.testing.assert_close(power.total(y), fy.sum(0))
    torch.testing.assert_close(power.total(y, w), w @ fy)
    torch.testing.assert_close(power.inner(y, g), (fy * fg).sum(-1))
    torch.testing.assert_close(power.distance(y, g), (fy - fg).square().sum(-1))
    torch.testing.assert_close(power.difference(y, g), (fy - fg).mean(0))
    assert power.spread(y, g) == pytest.approx(float((fy - fg).var(0).sum()), rel=1e-12)
    if full:
        torch.testing.assert_close(power.of(y), fy)


def test_totals_in_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    y = _normal(50, 3)
    whole = Power(3).total(y)
    monkeypatch.setattr("attnlimit.sampling.reference._ENTRIES_AT_ONCE", 64)
    torch.testing.assert_close(Power(3).total(y), whole)


def test_large_tensors_are_kept_to_their_diagonal() -> None:
    assert Power.that_fits(2, 1000).full
    assert Power.that_fits(3, 25).full
    assert not Power.that_fits(3, 26).full


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_gaussian_moments_against_quadrature(order: int, full: bool) -> None:
    """Gauss–Hermite quadrature in two dimensions is exact for these polynomials."""
    mean, root = torch.tensor([0.4, -1.1], dtype=torch.float64), _normal(2, 2, seed=3)
    nodes, weights = hermegauss(8)
    points = torch.tensor(np.array(list(product(nodes, nodes)))) @ root.T + mean
    mass = torch.tensor([a * b for a, b in product(weights, weights)]) / (2 * np.pi)
    power = Power(order, full)
    expected = mass @ power.of(points)
    torch.testing.assert_close(gaussian_moment(mean, root @ root.T, power), expected)
