"""Keys that are always attended to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import Natural


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Which keys every query keeps besides those it samples: its own token, the first `sinks` tokens, the `window`
    tokens up to and including its own position, the `around` tokens around it (shifted into the text at its ends), and
    the `top` keys of largest score."""

    own: bool = False
    sinks: Natural = 0
    window: Natural = 0
    around: Natural = 0
    top: Natural = 0

    def __bool__(self) -> bool:
        return self.own or any((self.sinks, self.window, self.around, self.top))

    def without(self, *, place: bool = False, order: bool = False) -> Kept:
        """What is left of it where queries have no place among the keys, or keys have no order."""
        kept = replace(self, own=False, window=0, around=0) if place else self
        return replace(kept, sinks=0) if order else kept

    def by_place(
        self, keys: int, positions: Int[Tensor, " m"] | None, first: Int[Tensor, "*b 1 1"] | int = 0
    ) -> Bool[Tensor, "*b _ keys"]:
        """True where query i keeps key j for its place alone. `positions` are the queries' own places among the keys,
        `first` that of the text's first token (after padding); one row where positions do not matter."""
        place = torch.arange(keys, device=None if positions is None else positions.device)
        kept = (place >= first) & (place < first + self.sinks)
        kept = kept[None] if isinstance(first, int) else kept
        if not (self.own or self.window or self.around):
            return kept
        if positions is None:
            raise InputError(
                "Keeping the own token or a window needs the queries' positions among the keys: give positions=."
            )
        back = positions[:, None] - place
        kept = kept | ((back >= 0) & (back < max(self.window, int(self.own))))
        if self.around:
            start = (positions - self.around // 2).clamp(max=keys - self.around).clamp_min(0)[:, None]
            kept = kept | ((place >= start) & (place < start + self.around))
        return kept

    def mask(self, scores: Float[Tensor, "m n"], positions: Int[Tensor, " m"] | None) -> Bool[Tensor, "m n"]:
        """True where query i keeps key j, whether for its place or for its score."""
        kept = self.by_place(scores.shape[1], positions).to(scores.device).expand(scores.shape)
        return kept | top_keys(scores, self.top) if self.top else kept

    def count(self, position: Int[Tensor, " m"], seen: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        """How many keys queries at these positions keep of the first `seen` keys of a text. Keys kept for their score
        are counted as if none of them were kept for their place too."""
        if self.around:
            raise InputError("Keys around a query are kept in whole populations only, not in texts.")
        window = max(self.window, int(self.own))
        sinks, near = seen.clamp_max(self.sinks), (position + 1).clamp_max(window)
        both = (torch.minimum(sinks, position + 1) - (position + 1 - near)).clamp_min(0) if window else 0
        return torch.minimum(sinks + near - both + self.top, seen)


def masks(
    sets: Sequence[Kept], scores: Float[Tensor, "m n"], positions: Int[Tensor, " m"] | None
) -> Bool[Tensor, "sets m n"]:
    """The masks of several sets, with one order of the scores for all."""
    order = scores.argsort(1, descending=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).to(order).expand_as(order))
    places = {one: one.mask(scores, positions) for one in {replace(one, top=0) for one in sets}}
    return torch.stack([places[replace(one, top=0)] | (rank < one.top) for one in sets])


def top_keys(scores: Float[Tensor, "*b n"], top: int) -> Bool[Tensor, "*b n"]:
    """True at the `top` largest scores of each row."""
    best = scores.topk(min(top, scores.shape[-1]), dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
