"""Sampled attention of all texts and heads of a layer at once, some queries at a time.

Scores are made once, attnlimit.models.attend.reading leaves those that are read, and softmax and values follow. For long
texts, see attnlimit.models.attend.sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs.by_query import TOPS, choose, contributions, spread
from attnlimit.designs.kept import Kept, top_keys
from attnlimit.models.attend.draws import Stream
from attnlimit.models.attend.reading import read_keys, rest_sums
from attnlimit.models.budget.budgets import HeadBudget
from attnlimit.models.see.call import Call
from attnlimit.models.see.masks import RuleMask

Block: TypeAlias = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]
"""Queries (m,), their outputs (B, h, m, dv) or None for the model's own, distinct keys (B, h, m), keys seen (B, _, m), and
which keys are read (B, _, m, keys), None where that would be too many to hold."""
Sizes: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From the softmax weights of queries and what they may draw from, both (B, h, m, keys): how many keys each draws, (B, h, m, 1)."""


def dense_blocks(
    call: Call,
    budgets: Sequence[HeadBudget],
    streams: list[list[Stream]],
    sizes: Sizes | None = None,
    group: int = 1,
) -> Iterator[Block]:
    """Block after block of the queries. `sizes` stands in for the budgets' n; `group` heads keep and draw together."""
    layer = _Layer(call, budgets, streams, sizes, group)
    for rows in call.blocks(call.heads):
        yield rows, *layer.block(rows)


def full_blocks(call: Call, budgets: Sequence[HeadBudget], streams: list[list[Stream]]) -> Iterator[Block]:
    """Heads that attend to everything: only counted."""
    for rows in call.blocks(1):
        read = seen_keys(call, rows)
        seen = read.sum(-1).expand(len(call.query), -1, len(rows))
        yield rows, None, seen.expand(-1, call.heads, -1), seen, read.expand(-1, call.heads, -1, -1)


def seen_keys(call: Call, rows: Int[Tensor, " m"]) -> Bool[Tensor, "_ _ _ keys"]:
    """Which keys each query sees; one row where all queries see the same, one head where all heads do."""
    return call.seen(rows[:1] if call.mask.alike else rows)


def placed_keys(call: Call, kept: Kept, rows: Int[Tensor, " m"]) -> Bool[Tensor, "_ _ keys"]:
    """Keys that are kept for their place, seen or not. Sinks are the first real tokens of the text."""
    first = torch.tensor([_first_token(call, batch) for batch in range(len(call.query))])
    first = first.to(rows.device)[:, None, None]
    if call.own_key is None:
        return kept.without(place=True).by_place(call.key.shape[2], None, first)
    return kept.by_place(call.key.shape[2], rows + call.own_key, first)


class _Layer:
    """One call of a layer, all of its heads sampled."""

    def __init__(
        self,
        call: Call,
        budgets: Sequence[HeadBudget],
        streams: list[list[Stream]],
        sizes: Sizes | None = None,
        group: int = 1,
    ) -> None:
        self.call, self.budgets, self.sizes, self.group = call, budgets, sizes, group
        device = call.query.device
        self.n = torch.tensor([one.n or 0 for one in budgets], device=device)[None, :, None, None]
        self.top = torch.tensor([one.sampling.kept.top for one in budgets], device=device)[
            None, :, None, None
        ]
        following = [one.by_query for one in budgets if one.by_query is not None]
        self.per_spread = torch.tensor(following, device=device)[:, None, None] if following else None
        rest = [one.sampling.weight == "rest" for one in budgets]
        self.rest = torch.tensor(rest, device=device)[:, None, None]
        self.order = torch.stack([torch.stack([one.order for one in row]) for row in streams])[:, :, None]
        self.order = self.order.to(device)
        self.start: Tensor | None = None
        if streams[0][0].start is not None:
            starts = [torch.stack([one.start for one in row]) for row in streams]  # type: ignore[misc]
            self.start = torch.stack(starts)[..., None].to(device)

    def block(
        self, rows: Int[Tensor, " m"]
    ) -> tuple[
        Float[Tensor, "b h m dv"], Int[Tensor, "b h m"], Int[Tensor, "b _ m"], Bool[Tensor, "b h m keys"]
    ]:
        """Outputs, distinct keys attended to, keys seen, and which are read, of some queries."""
        call, seen = self.call, seen_keys(self.call, rows)
        scores = call.block_scores(rows).masked_fill_(~seen, -torch.inf)
        placed, (top, n) = self.placed(rows), (self.top, self.n)
        if self.per_spread is not None:
            top, n = self.following(scores, placed)
        elif self.sizes is not None:
            placed = placed | self._top(scores)
            n = self.sizes(call.weights(scores), ((scores > -torch.inf) & ~placed))
            top = torch.zeros_like(top)
        start = None if self.start is None else self.start[:, :, rows]
        read, distinct = read_keys(scores, placed, top, n, self.order, start, self.rest, self.group)
        values = call.value.repeat_interleave(call.groups, 1).to(read)
        out = (call.weights(read) @ values).to(call.value.dtype)
        return out, distinct, seen.sum(-1).expand(len(out), -1, len(rows)), read > -torch.inf

    def placed(self, rows: Int[Tensor, " m"]) -> Bool[Tensor, "_ _ _ keys"]:
        """Keys that are kept for their place, seen or not."""
        by_place = [replace(one.sampling.kept, top=0) for one in self.budgets]
        kinds = list(dict.fromkeys(by_place))
        parts = [placed_keys(self.call, kind, rows) for kind in kinds]
        if len(kinds) == 1:
            return parts[0][:, None]
        parts = [part.expand(len(self.call.query), max(p.shape[1] for p in parts), -1) for part in parts]
        return torch.stack(parts, 1)[:, [kinds.index(kind) for kind in by_place]]

    def _top(self, scores: Float[Tensor, "b h m keys"]) -> Bool[Tensor, "b h m keys"]:
        found = torch.zeros_like(scores, dtype=torch.bool)
        for head, one in enumerate(self.budgets):
            found[:, head] = top_keys(scores[:, head], one.sampling.kept.top)
        return found

    def following(
        self, scores: Float[Tensor, "b h m keys"], placed: Bool[Tensor, "_ _ _ keys"]
    ) -> tuple[Int[Tensor, "b h m 1"], Int[Tensor, "b h m 1"]]:
        """How many keys of largest score each query keeps, and how many it draws (attnlimit.designs.by_query)."""
        assert self.per_spread is not None
        values = self.call.value.repeat_interleave(self.call.groups, 1).to(scores)
        share, seen = contributions(self.call.weights(scores), values), scores > -torch.inf
        number, total, square = rest_sums(scores, seen & ~placed, share)
        kept = seen.sum(-1, keepdim=True) - number
        chosen, n = choose(self.per_spread, spread(number, total, square), number, kept)
        return torch.tensor(TOPS, device=scores.device)[chosen], n.long()


def _first_token(call: Call, batch: int) -> int:
    """Where the text's first token is among the keys: after the padding on its left, before what a cache dropped."""
    if not isinstance(call.mask, RuleMask):
        return 0
    padding = call.mask.padding
    return (0 if padding is None else int(padding[batch].int().argmax())) - call.mask.key_start
