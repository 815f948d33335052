"""The sums behind exact errors: compiled loops against torch."""

from __future__ import annotations

import pytest
import torch

from attnlimit.numerics import laplace


@pytest.mark.parametrize("spread", [1.0, 30.0, 900.0])
def test_compiled_loops_and_torch_fill_the_same(spread, generator):
    """Also where y is so small that a series stands for the exponential, so large that nothing is left, and no product of two
    finite numbers. 1 + (e^{−y} − 1) is rounded at 1e-16, and y² ≤ 40² multiplies that."""
    pytest.importorskip("numba")
    tau = torch.linspace(-spread - 20, spread + 4, 50, dtype=torch.float64).expand(3, -1)
    scores = spread * (torch.rand(3, 40, generator=generator, dtype=torch.float64) - 0.5)
    plain = laplace._plain(tau, scores, torch.float64)
    for one, other in zip(plain, laplace._compiled(tau, scores, torch.float64), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=2e-13)
