"""Keys binned by score, for each query: the sums that the finite-n error needs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from attnlimit.numerics.compiled import has_numba, run_compiled


class Bins(NamedTuple):
    """For each query and bin of centre c, over the keys with score z in it and w = e^{z − c}."""

    low: Float[Tensor, " m"]
    """Where the first bin begins."""
    width: Float[Tensor, " m"]
    mass: Float[Tensor, "m b"]
    """Σ mass."""
    weight: Float[Tensor, "m b"]
    """Σ mass·w."""
    square: Float[Tensor, "m b"]
    """Σ mass·w² ‖value − limit‖²."""
    value: Float[Tensor, "m b p"]
    """Σ mass·w value."""
    limit: Float[Tensor, "m p"]
    keys: Float[Tensor, "m 1"]
    """How many there are in all bins together."""

    def of(self, rows: slice) -> Bins:
        """Those of some queries."""
        return Bins(*(part[rows] for part in self))

    def merged(self) -> Bins:
        """Two neighbours as one."""
        odd = self.mass.shape[1] % 2
        half = self.width[:, None] * torch.tensor([-0.5, 0.5]).to(self.width)
        away = half.exp()[:, None]
        mass, weight, square = (pad(part, (0, odd)).unflatten(1, (-1, 2)) for part in self[2:5])
        value = pad(self.value, (0, 0, 0, odd)).unflatten(1, (-1, 2))
        return Bins(
            self.low,
            2 * self.width,
            mass.sum(-1),
            (away * weight).sum(-1),
            (away.square() * square).sum(-1),
            (away[..., None] * value).sum(2),
            *self[6:],
        )


def bin_by_score(
    scores: Float[Tensor, "m n"],
    low: Float[Tensor, " m"],
    width: Float[Tensor, " m"],
    bins: int,
    values: Float[Tensor, "#m n p"],
    limit: Float[Tensor, "m p"],
    mass: Float[Tensor, " n"],
    skipped: Bool[Tensor, "m n"] | None = None,
) -> Bins:
    """Bin k of a query holds the scores from low + k·width on; `skipped` keys are left out."""
    product = limit @ values[0].T if len(values) == 1 else (values @ limit[..., None])[..., 0]
    squares = torch.linalg.vector_norm(values, dim=-1).square(), limit.square().sum(-1)
    keys = scores.new_full((len(scores), 1), scores.shape[1], dtype=torch.float64)
    if skipped is not None:
        keys = keys - skipped.sum(1, keepdim=True)
    if not has_numba() or scores.device.type != "cpu":
        table = _sparse(scores, low, width, bins, values, product, *squares, mass, skipped)
        return Bins(low, width, table[..., 0], table[..., 1], table[..., 2], table[..., 3:], limit, keys)
    from attnlimit.numerics.bin_loops import bin_keys  # imports numba

    count, weight, square = (values.new_zeros(len(scores), bins) for _ in range(3))
    value = values.new_zeros(len(scores), bins, values.shape[2])
    skip = torch.zeros(1, 1, dtype=torch.bool) if skipped is None else skipped
    inputs = [one.contiguous() for one in (scores, low, width, values, product, *squares, mass, skip)]
    run_compiled(bin_keys, len(scores), *inputs, count, weight, square, value)
    return Bins(low, width, count, weight, square, value, limit, keys)


def _sparse(
    scores: Tensor,
    low: Tensor,
    width: Tensor,
    bins: int,
    values: Tensor,
    product: Tensor,
    value_square: Tensor,
    limit_square: Tensor,
    mass: Tensor,
    skipped: Tensor | None,
) -> Tensor:
    """The same without numba: a matrix with one entry in each row, times the values, a query at a time."""
    from scipy.sparse import csr_array  # slow to import

    rows, one = torch.arange(scores.shape[1] + 1).numpy(), torch.ones_like(values[0, :, :1])
    sums = []
    for i in range(scores.shape[0]):
        own = min(i, len(values) - 1)
        place = ((scores[i] - low[i]) / width[i]).long().clamp_max(bins - 1)
        w = torch.exp(scores[i] - (low[i] + (place + 0.5) * width[i]))
        weight = mass if skipped is None else mass.masked_fill(skipped[i], 0.0)
        distance = (value_square[own] - 2 * product[i] + limit_square[i]).clamp_min(0)
        table = torch.cat([one, w[:, None], (w.square() * distance)[:, None], w[:, None] * values[own]], 1)
        matrix = csr_array((weight.cpu().numpy(), place.cpu().numpy(), rows), (len(place), bins))
        sums.append(torch.from_numpy(matrix.T @ table.cpu().numpy()))
    return torch.stack(sums).to(scores.device)
