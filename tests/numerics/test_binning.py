"""Sums by bin: sparse and the definition. (Compiled: see test_condensed.)"""

from __future__ import annotations

import pytest
import torch

from attnlimit.numerics.binning import FEWEST_BINS, WIDTH, Edges, Scored, bin_by_score


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("own", [1, 3], ids=["shared values", "values of each query"])
def test_sums_by_bin(dtype, skip, own, generator):
    scores = 3 * torch.randn(3, 50, generator=generator, dtype=dtype)
    values = torch.randn(own, 50, 4, generator=generator, dtype=dtype)
    limit = torch.randn(3, 4, generator=generator, dtype=dtype)
    distance = (values - limit[:, None, :]).square().sum(-1)
    mass = torch.rand(50, generator=generator, dtype=dtype)
    skipped = torch.rand(3, 50, generator=generator) < 0.3 if skip else None
    low, high = scores.amin(1), scores.amax(1)
    width = (high - low) / 7
    keys = Scored(scores, values, values.square().sum(-1), limit, mass, skipped)
    sums = bin_by_score(keys, Edges(low, width, torch.full((3,), 7)))

    place = ((scores - low[:, None]) / width[:, None]).long().clamp_max(6)
    w = torch.exp(scores - (low[:, None] + (place + 0.5) * width[:, None]))
    chosen = mass * (place[..., None] == torch.arange(7)).mT.to(dtype)
    if skip:
        chosen = chosen * ~skipped[:, None, :]
    close = {"atol": 1e-4, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-12, "rtol": 0}
    assert torch.allclose(sums.mass, chosen.sum(-1), **close)
    assert torch.allclose(sums.weight, (chosen * w[:, None, :]).sum(-1), **close)
    assert torch.allclose(sums.square, (chosen * (w.square() * distance)[:, None, :]).sum(-1), **close)
    assert torch.allclose(sums.value, (chosen * w[:, None, :]) @ values, **close)


def test_edges_hold_the_keys_that_are_not_skipped_in_bins_of_their_width(generator):
    scores = torch.tensor([[0.01], [1.0], [10.0]]) * torch.randn(3, 500, generator=generator)
    skipped = scores.abs() > 0.5 * scores.abs().amax(1, keepdim=True)
    values = torch.zeros(1, 500, 1)
    for out in (None, skipped):
        low, width, bins = Scored(scores, values, values[..., 0], values[0, :3], torch.ones(500), out).edges()
        seen = scores if out is None else scores.masked_fill(out, torch.nan)
        assert torch.equal(low, seen.nan_to_num(nan=torch.inf).amin(1))
        torch.testing.assert_close(low + width * bins, seen.nan_to_num(nan=-torch.inf).amax(1))
        assert bool((width <= WIDTH * 1.0001).all())
        assert bool(((width > WIDTH / 2) | (bins == FEWEST_BINS)).all())
        assert bool((bins % 2 == 0).all())
