"""Sums by bin: compiled, sparse and the definition."""

from __future__ import annotations

import pytest
import torch

from attnlimit.numerics import binning


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("own", [1, 3], ids=["shared values", "values of each query"])
def test_sums_by_bin(dtype, fast, skip, own, monkeypatch, generator):
    if fast:
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(binning, "has_numba", lambda: False)
    scores = 3 * torch.randn(3, 50, generator=generator, dtype=dtype)
    values = torch.randn(own, 50, 4, generator=generator, dtype=dtype)
    limit = torch.randn(3, 4, generator=generator, dtype=dtype)
    distance = (values - limit[:, None, :]).square().sum(-1)
    mass = torch.rand(50, generator=generator, dtype=dtype)
    skipped = torch.rand(3, 50, generator=generator) < 0.3 if skip else None
    low, high = scores.amin(1), scores.amax(1)
    width = (high - low) / 7
    sums = binning.bin_by_score(scores, low, width, 7, values, limit, mass, skipped)

    place = ((scores - low[:, None]) / width[:, None]).long().clamp_max(6)
    w = torch.exp(scores - (low[:, None] + (place + 0.5) * width[:, None]))
    chosen = mass * (place[..., None] == torch.arange(7)).mT.to(dtype)
    if skip:
        chosen = chosen * ~skipped[:, None, :]
    close = {"atol": 1e-4 if dtype == torch.float32 else 1e-12}
    assert torch.allclose(sums.mass, chosen.sum(-1), **close)
    assert torch.allclose(sums.weight, (chosen * w[:, None, :]).sum(-1), **close)
    assert torch.allclose(sums.square, (chosen * (w.square() * distance)[:, None, :]).sum(-1), **close)
    assert torch.allclose(sums.value, (chosen * w[:, None, :]) @ values, **close)
