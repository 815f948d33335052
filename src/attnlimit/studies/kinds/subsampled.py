"""Heads of a model on a text with n of their keys: the squared error by Monte Carlo, and in closed form.

For query i with window S (always kept; empty for plain subsampling), and the first r = n − |S| other keys of a random
order J,

    Γ_n = ( Σ_S e^{s_j} v_j + c Σ_J e^{s_j} v_j ) / ( Σ_S e^{s_j} + c Σ_J e^{s_j} ),   c = 1, or (N − |S|)/r (importance)

against Γ, which has all N keys of the context. Keys of smaller n are among those of larger n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs import Coins, Different, Independent, Kept, Sampling
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import prepare_seen

AT_ONCE = 2**22
"""Weights of the largest block of replicates."""
BIN_ABOVE = 256
"""Keys from which on scores are binned: four times as fast for 512 keys, and 0.04 % off."""


@dataclass(frozen=True, eq=False)
class Passage:
    """One head at some queries of one passage."""

    scores: Float[Tensor, "m keys"]
    values: Float[Tensor, "keys d"]
    positions: Int[Tensor, " m"]

    def only(self, keys: slice) -> Passage:
        """With some neighbouring keys, the queries' own among them."""
        return Passage(self.scores[:, keys], self.values[keys], self.positions - (keys.start or 0))

    def near(self, width: int) -> Bool[Tensor, "m keys"]:
        """The `width` keys around each query, its own included; shifted back in at the ends of the text."""
        keys = self.scores.shape[1]
        start = (self.positions - width // 2).clamp(0, keys - width)[:, None]
        place = torch.arange(keys)
        return (place >= start) & (place < start + width)


def sampled_squares(
    passage: Passage, policy: str, n: Sequence[int], window: int, replicates: int, generator: torch.Generator
) -> Float[Tensor, "replicates n"]:
    """Mean over the queries of ‖Γ_n − Γ‖², for each replicate: all queries of a replicate share their random keys."""
    m, keys = passage.scores.shape
    top = passage.scores.double()
    weights = (top - top.amax(1, keepdim=True)).exp().clamp_min(1e-300)
    ones = torch.ones(keys, 1, dtype=torch.float64)
    values = torch.cat([passage.values.double(), ones], 1)
    kept = passage.near(window) if policy.startswith("window") else None
    head = _Head(weights, values, kept, policy == "window-importance")
    length = n[-1] if kept is None else keys
    step = max(1, AT_ONCE // (m * length))
    parts = []
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        if policy == "iid":
            order = torch.randint(keys, (count, length), generator=generator)
        else:
            order = torch.rand(count, keys, generator=generator).argsort(1)[:, :length]
        parts.append(head.squares(order, n))
    return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class _Head:
    weights: Float[Tensor, "m keys"]
    values: Float[Tensor, "keys d1"]
    """With a column of ones, so that sums of weights come along."""
    kept: Bool[Tensor, "m keys"] | None
    importance: bool

    def squares(self, order: Int[Tensor, "b length"], n: Sequence[int]) -> Float[Tensor, "b n"]:
        full = _ratio(self.weights @ self.values)
        window = 0 if self.kept is None else int(self.kept[0].sum())
        own = None if self.kept is None else (self.weights * self.kept) @ self.values
        rank = None if self.kept is None else (~self.kept[:, order]).cumsum(-1, dtype=torch.int32)
        total = torch.zeros(len(order), *self.weights.shape[:1], self.values.shape[1], dtype=torch.float64)
        found = []
        for before, after in pairwise([0, *(size - window for size in n)]):
            total += self._segment(order, rank, before, after, window)
            scale = (self.weights.shape[1] - window) / after if self.importance else 1.0
            out = _ratio(total if own is None else own + scale * total)
            found.append((out - full).square().sum(-1).mean(-1))
        return torch.stack(found, 1)

    def _segment(
        self, order: Tensor, rank: Tensor | None, before: int, after: int, window: int
    ) -> Float[Tensor, "b m d1"]:
        """Σ w (v, 1) over the keys before … after of the order, those of each query's window left out."""
        # a key whose rank among the others is r stands at most `window` places later in the order
        places = slice(before, after + window)
        chosen = order[:, places]
        weights = self.weights[:, chosen].transpose(0, 1)
        if rank is not None and self.kept is not None:
            here, inside = rank[..., places].transpose(0, 1), self.kept[:, chosen].transpose(0, 1)
            weights = weights * ((here > before) & (here <= after) & ~inside)
        return weights @ self.values[chosen]


def _ratio(sums: Float[Tensor, "*b d1"]) -> Float[Tensor, "*b d"]:
    return sums[..., :-1] / sums[..., -1:]


def exact_squares(passage: Passage, policy: str, n: Sequence[int], window: int) -> Float[Tensor, "m n"]:
    """E‖Γ_n − Γ‖² of each query: exact for independent keys, the fixed-size formula for different ones, and for the
    plain window keys that are each drawn with probability r/(N − |S|)."""
    seen = Seen(passage.scores.double(), passage.values.double())
    ways = {
        "iid": Sampling(draw=Independent()),
        "without-replacement": Sampling(draw=Different(), weight="rest"),
        "window": Sampling(draw=Coins(), kept=Kept(around=window)),
        "window-importance": Sampling(draw=Different(), kept=Kept(around=window), weight="rest"),
    }
    drawn = torch.tensor([n], dtype=torch.float64) - (window if policy.startswith("window") else 0)
    binned = passage.scores.shape[1] > BIN_ABOVE
    ready = prepare_seen(seen, int(drawn.max()), ways[policy], positions=passage.positions, binned=binned)
    return ready.moments(drawn)[0]
