"""Exponentials that end at zero."""

import pytest
import torch

from attnlimit.numerics.fading import faded


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, -87.0), (torch.float64, -700.0)])
def test_as_the_exponential_and_then_zero(dtype, least):
    x = torch.linspace(least, 0.0, 999, dtype=dtype)[1:]
    torch.testing.assert_close(faded(x), x.exp(), rtol=1e-6, atol=2e-38)
    assert float(faded(torch.tensor([-torch.inf, -1e9, 2 * least], dtype=dtype)).abs().max()) < 1e-44
