"""The sums behind exact errors: compiled loops against torch."""

from __future__ import annotations

import pytest
import torch

from attnlimit.numerics import laplace
from attnlimit.numerics.condensed import Condensed


@pytest.mark.parametrize("spread", [1.0, 30.0, 900.0])
def test_compiled_loops_and_torch_add_up_the_same(spread, generator):
    """Also where all keys are light, so that products of sums stand for them, or spent, so that nothing is left. The series
    is good to `LIGHT`² / 2 = 5e-9 of what light keys give; torch's 1 + (e^{−y} − 1) is rounded at 1e-16, times y² ≤ 40²."""
    pytest.importorskip("numba")
    tau = torch.linspace(-spread - 20, spread + 4, 50, dtype=torch.float64).expand(3, -1)
    scores, number, square = torch.rand(3, 3, 40, generator=generator, dtype=torch.float64)
    vector = torch.randn(3, 40, 5, generator=generator, dtype=torch.float64)
    keys = Condensed(spread * (scores - 0.5), number - 0.1, vector, square)
    size = keys._replace(number=keys.number.abs(), vector=vector.abs())
    found, expected, largest = (
        laplace._compiled(tau, keys),
        laplace._plain(tau, keys),
        laplace._plain(tau, size),
    )
    for one, other, scale in zip(found, expected, largest, strict=True):
        assert ((one - other).abs() <= 1e-8 * scale.abs() + 1e-12).all()
