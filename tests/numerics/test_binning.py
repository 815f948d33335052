"""Sums by bin: compiled, sparse and the definition."""

from __future__ import annotations

import pytest
import torch

from attnlimit.numerics import binning


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("compiled", [True, False])
def test_sums_by_bin(dtype, compiled, monkeypatch, generator):
    if compiled:
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(binning, "_compiled", lambda: None)
    bins = torch.randint(-1, 7, (3, 50), generator=generator, dtype=torch.int32)
    weights = torch.rand(3, 50, generator=generator, dtype=dtype)
    values = torch.randn(50, 4, generator=generator, dtype=dtype)
    one_hot = (bins[..., None] == torch.arange(7)).to(dtype)
    expected = torch.einsum("mnb,mn,np->mbp", one_hot, weights, values)
    assert torch.allclose(
        binning.bin_sums(bins, weights, values, 7), expected, atol=1e-5 if dtype == torch.float32 else 1e-12
    )
