"""Few atoms in place of many: the sums that the finite-n error asks for."""

import pytest
import torch

from attnlimit.exact.populations import Seen
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
        torch.einsum("tmj,mjp->tmp", r * y, atoms.vector),
        (r * (1 - r) * y.square() * atoms.square).sum(-1),
    )
