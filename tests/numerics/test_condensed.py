"""Few atoms in place of many: the sums that the finite-n error asks for."""

import pytest
import torch

from attnlimit.exact.populations import Seen
from attnlimit.numerics import condensed as module
from attnlimit.numerics.binning import Edges, Scored, bin_by_score
from attnlimit.numerics.condensed import CLOSE, Condensed, as_they_are, condensed, condensed_keys


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
@pytest.mark.parametrize("own", [1, 3], ids=["shared values", "values of each query"])
@pytest.mark.parametrize("skip", [True, False])
def test_bins_condensed_by_the_kernel_and_by_torch(dtype, close, own, skip, monkeypatch):
    """And both against the bins themselves; some keys are left out, weigh more than others, and some bins stand alone. Values are
    more than a row of lanes, and no multiple of one."""
    pytest.importorskip("numba")
    g = torch.Generator().manual_seed(1)
    scores, values = (torch.randn(*size, generator=g, dtype=dtype) for size in ((3, 400), (own, 400, 37)))
    scores = torch.tensor([[0.3], [1.5], [4.0]], dtype=dtype) * scores
    skipped = torch.rand(3, 400, generator=g) < 0.2 if skip else None
    mass, limit = 0.5 + torch.rand(400, generator=g).to(dtype), torch.randn(3, 37, generator=g).to(dtype)
    keys = Scored(scores, values, values.square().sum(-1), limit, mass, skipped)
    compiled = condensed_keys(keys, CLOSE, again=2)
    monkeypatch.setattr(module, "has_numba", lambda: False)
    plain = condensed_keys(keys, CLOSE, again=2)
    tau = torch.arange(-14, 6, 0.5, dtype=torch.float64)[:, None, None]
    number = torch.cat([keys.number(), keys.number()[:2]])
    for one in (compiled, plain):
        torch.testing.assert_close(one.number.sum(1, keepdim=True), number, rtol=1e-5, atol=0)
    some = Scored(scores[:2], values[:2], keys.squares[:2], limit[:2], mass, skipped[:2] if skip else None)
    edges = some.edges()
    half = Edges(edges.low, 2 * edges.width, edges.bins // 2)
    whole, halves = _as_atoms(keys, keys.edges()), _as_atoms(some, half)
    for p in (0.02, 0.3):
        found, again = _sums(compiled, tau, p), _sums(plain, tau, p)
        every = [torch.cat(two, 1) for two in zip(_sums(whole, tau, p), _sums(halves, tau, p), strict=True)]
        for one, other, all_bins in zip(found, again, every, strict=True):
            assert float((one - other).abs().max() / other.abs().max()) < close
            assert float((one - all_bins).abs().max() / all_bins.abs().max()) < 5e-4


def _as_atoms(keys, edges):
    bins = bin_by_score(keys, edges)
    full = bins.mass > 0
    mass, weight = (torch.where(full, part, 1.0).double() for part in (bins.mass, bins.weight))
    count = torch.where(full, mass, 0.0) / bins.mass.double().sum(1, keepdim=True) * keys.number()
    place = (torch.arange(mass.shape[1]) + 0.5) * edges.width.double()[:, None]
    error = bins.value.double() / weight[..., None] - keys.limit.double()[:, None]
    scores = edges.low.double()[:, None] + place + (weight / mass).log()
    return Condensed(scores, count, count[..., None] * error, count * bins.square * mass / weight.square())
