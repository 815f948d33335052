"""Few atoms in place of many: the sums that the finite-n error asks for."""

import pytest
import torch

from attnlimit.exact.populations import Seen
from attnlimit.numerics import condensed as module
from attnlimit.numerics.condensed import as_they_are, condensed


@pytest.mark.parametrize(("keys", "spread"), [(40, 3.0), (500, 1.0), (3000, 3.0)])
def test_sums_are_those_of_all_keys(keys, spread):
    """Of log q, r tw u and (r − r²)(tw)²‖u‖² at chances 0.01 and 0.3, relative to their largest over t."""
    g = torch.Generator().manual_seed(keys)
    scores, values = (torch.randn(*size, generator=g, dtype=torch.float64) for size in ((2, keys), (keys, 3)))
    atoms, _ = Seen(spread * scores, values).atoms(None, binned=False)
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
    """Sparse stretches keep their bins, dense ones become six points; some keys are left out."""
    pytest.importorskip("numba")
    g = torch.Generator().manual_seed(1)
    scores, values = (torch.randn(*size, generator=g, dtype=dtype) for size in ((3, 400), (400, 5)))
    scores = torch.tensor([[0.3], [1.5], [4.0]], dtype=dtype) * scores
    hidden = torch.rand(3, 400, generator=g) < 0.2
    seen = Seen(scores, values, hidden)
    compiled, _ = seen.atoms(None)
    monkeypatch.setattr(module, "has_numba", lambda: False)
    plain, _ = seen.atoms(None)
    number = (~hidden).sum(1).double()
    tau = torch.arange(-14, 6, 0.5, dtype=torch.float64)[:, None, None]
    for one in (compiled, plain):
        torch.testing.assert_close(one.number.sum(1), number, rtol=1e-5, atol=0)
    for one, other in zip(_sums(compiled, tau, 0.3), _sums(plain, tau, 0.3), strict=True):
        assert float((one - other).abs().max() / other.abs().max()) < close
