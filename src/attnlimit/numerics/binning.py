"""Keys binned by score, for each query: the sums that the finite-n error needs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

WIDTH = 0.1
"""Score width of a bin: weights within it agree to 5 %, and the error is of second order in that (0.1 to 0.4 %)."""
FEWEST_BINS, MOST_BINS = 8, 4096
"""Of a query."""


class Scored(NamedTuple):
    """Keys as queries score them."""

    scores: Float[Tensor, "m n"]
    values: Float[Tensor, "#m n p"]
    squares: Float[Tensor, "#m n"]
    """‖value‖²."""
    limit: Float[Tensor, "m p"]
    """Γ, what errors are measured from."""
    mass: Float[Tensor, " n"]
    skipped: Bool[Tensor, "m n"] | None = None
    """Keys that are left out."""

    def products(self) -> Float[Tensor, "m n"]:
        """Of values and Γ."""
        if len(self.values) == 1:
            return self.limit @ self.values[0].T
        return (self.values @ self.limit[..., None])[..., 0]

    def number(self) -> Float[Tensor, "m 1"]:
        """How many there are."""
        every = self.scores.new_full((len(self.scores), 1), self.scores.shape[1], dtype=torch.float64)
        return every if self.skipped is None else every - self.skipped.sum(1, keepdim=True)

    def edges(self) -> Edges:
        """As many bins as the scores of a query need, an even number."""
        low, high = self.scores.amin(1), self.scores.amax(1)
        if self.skipped is not None:
            low = self.scores.masked_fill(self.skipped, torch.inf).amin(1)
            high = self.scores.masked_fill(self.skipped, -torch.inf).amax(1)
        bins = 2 * ((high - low) / (2 * WIDTH)).ceil().clamp(FEWEST_BINS // 2, MOST_BINS // 2)
        return Edges(low, ((high - low) / bins).clamp_min(1e-6), bins.long())


class Edges(NamedTuple):
    """Bin k of a query holds the scores from low + k·width on."""

    low: Float[Tensor, " m"]
    width: Float[Tensor, " m"]
    bins: Int[Tensor, " m"]


class Bins(NamedTuple):
    """For each query and bin of centre c, over the keys with score z in it and w = e^{z − c}."""

    mass: Float[Tensor, "m b"]
    """Σ mass."""
    weight: Float[Tensor, "m b"]
    """Σ mass·w."""
    square: Float[Tensor, "m b"]
    """Σ mass·w² ‖value − limit‖²."""
    value: Float[Tensor, "m b p"]
    """Σ mass·w value."""

    def halved(self, some: int, width: Float[Tensor, " m"]) -> Bins:
        """Of the first queries, two bins as one, whose centre is where they meet."""
        up = (width[:some, None] / 2).exp()
        below, above = ([part[:some, first::2] for part in self] for first in (0, 1))
        mass, weight, square = (
            x / up**power + y * up**power for x, y, power in zip(below[:3], above[:3], (0, 1, 2), strict=True)
        )
        return Bins(mass, weight, square, below[3] / up[..., None] + above[3] * up[..., None])


def bin_by_score(keys: Scored, edges: Edges) -> Bins:
    """A matrix with one entry in each row, times the values, a query at a time. (Compiled: `bin_loops`.)"""
    from scipy.sparse import csr_array  # slow to import

    scores, values, products, bins = keys.scores, keys.values, keys.products(), int(edges.bins.max())
    rows, one = torch.arange(scores.shape[1] + 1).numpy(), torch.ones_like(values[0, :, :1])
    sums = []
    for i, (low, width, last) in enumerate(zip(*edges, strict=True)):
        own = min(i, len(values) - 1)
        place = ((scores[i] - low) / width).long().clamp_max(last - 1)
        w = torch.exp(scores[i] - (low + (place.to(scores) + 0.5) * width))
        mass = keys.mass if keys.skipped is None else keys.mass.masked_fill(keys.skipped[i], 0.0)
        distance = keys.squares[own] - 2 * products[i] + keys.limit[i].square().sum()
        squares = w.square() * distance.clamp_min(0)
        table = torch.cat([one, w[:, None], squares[:, None], w[:, None] * values[own]], 1)
        matrix = csr_array((mass.cpu().numpy(), place.cpu().numpy(), rows), (len(place), bins))
        sums.append(torch.from_numpy(matrix.T @ table.cpu().numpy()))
    found = torch.stack(sums).to(scores.device)
    return Bins(found[..., 0], found[..., 1], found[..., 2], found[..., 3:])
