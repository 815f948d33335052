"""Few atoms in place of many: the sums that the finite-n error asks for."""

import pytest
import torch

from attnlimit.exact.populations import Seen
from attnlimit.numerics import condensed as module
from attnlimit.numerics.binning import bin_by_score
from attnlimit.numerics.condensed import CLOSE, Condensed, as_they_are, condensed, condensed_bins


@pytest.mark.parametrize(("keys", "spread"), [(40, 3.0), (500, 1.0), (3000, 3.0)])
def test_sums_are_those_of_all_keys(keys, spread):
    """Of log q, r tw u and (r − r²)(tw)²‖u‖² at chances 0.01 and 0.3, relative to their largest over t."""
    g = torch.Generator().manual_seed(keys)
    scores, values = (torch.randn(*size, generator=g, dtype=torch.float64) for size in ((2, keys), (keys, 3)))
    atoms, _ = Seen(spread * scores, values).atoms(None)
    number = torch.full((2, 1), float(keys), dtype=torch.float64)
    few, all_keys = condensed(atoms, number), as_they_are(atoms, number)
    assert few.scores.shape[1] <= (keys if keys < 100 else keys / 8)
    torch.testing.assert_close(few.number.sum(1, keepdim=True), number, rtol=1e-12, atol=0)
    tau = torch.arange(-14, 6, 0.5, dtype=torch.float64)[:, None, None]
    for p in (0.01, 0.3):
        found, expected = (_sums(part, tau, p) for part in (few, all_keys))
        for one, other in zip(found, expected, strict=True):
            assert float((one - other).abs().max() / other.abs().max()) < 1e-5


def _sums(atoms, tau, p):
    y = (tau + atoms.scores).clamp_max(6.5).exp()
    q = 1 - p + p * (-y).exp()
    r = p * (-y).exp() / q
    return (
        (q.log() * atoms.number).sum(-1),
        torch.einsum("tmj,mjp->tmp", r * y, atoms.vector.double()),
        (r * (1 - r) * y.square() * atoms.square).sum(-1),
    )


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_bins_condensed_by_the_kernel_and_by_torch(dtype, close, monkeypatch):
    """And both against the bins themselves; some keys are left out, and some bins stand alone."""
    pytest.importorskip("numba")
    g = torch.Generator().manual_seed(1)
    scores, values = (torch.randn(*size, generator=g, dtype=dtype) for size in ((3, 400), (400, 5)))
    scores = torch.tensor([[0.3], [1.5], [4.0]], dtype=dtype) * scores
    hidden = torch.rand(3, 400, generator=g) < 0.2
    seen = Seen(scores, values, hidden)
    bins, _ = seen.bins(None)
    compiled = condensed_bins([bins], CLOSE)
    monkeypatch.setattr(module, "has_numba", lambda: False)
    plain = condensed_bins([bins], CLOSE)
    number = (~hidden).sum(1, keepdim=True).double()
    tau = torch.arange(-14, 6, 0.5, dtype=torch.float64)[:, None, None]
    for one in (compiled, plain):
        torch.testing.assert_close(one.number.sum(1, keepdim=True), number, rtol=1e-5, atol=0)
    for p in (0.02, 0.3):
        found, again, every = (_sums(one, tau, p) for one in (compiled, plain, _as_atoms(bins)))
        for one, other, all_bins in zip(found, again, every, strict=True):
            assert float((one - other).abs().max() / other.abs().max()) < close
            assert float((one - all_bins).abs().max() / all_bins.abs().max()) < 5e-4


def _as_atoms(bins):
    full = bins.mass > 0
    mass, weight = (torch.where(full, part, 1.0).double() for part in (bins.mass, bins.weight))
    count = torch.where(full, mass, 0.0) / bins.mass.double().sum(1, keepdim=True) * bins.keys
    place = (torch.arange(mass.shape[1]) + 0.5) * bins.width.double()[:, None]
    error = bins.value.double() / weight[..., None] - bins.limit.double()[:, None]
    scores = bins.low.double()[:, None] + place + (weight / mass).log()
    return Condensed(scores, count, count[..., None] * error, count * bins.square * mass / weight.square())


def test_merged_bins_are_bins_of_twice_the_width():
    g = torch.Generator().manual_seed(2)
    scores, values = (
        torch.randn(*size, generator=g, dtype=torch.float64) for size in ((2, 300), (1, 300, 3))
    )
    limit, mass = torch.zeros(2, 3, dtype=torch.float64), torch.ones(300, dtype=torch.float64)
    low, width = scores.amin(1), torch.full((2,), 0.13, dtype=torch.float64)
    count = int(((scores.amax(1) - low) / width).max()) + 1
    for bins in (count, count + 1):  # an odd number among them
        fine = bin_by_score(scores, low, width, bins, values, limit, mass)
        wide = bin_by_score(scores, low, 2 * width, (bins + 1) // 2, values, limit, mass)
        for one, other in zip(fine.merged(), wide, strict=True):
            torch.testing.assert_close(one, other)
