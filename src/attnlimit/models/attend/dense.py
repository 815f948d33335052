"""Sampled attention of all texts and heads of a layer at once, some queries at a time.

Each key gets a number to add to its score: 0 if it is kept, log c if it is drawn, −∞ else. The rest is the model's own
attention, so a sampled layer costs a few times as much as a full one. For long texts, see attnlimit.models.attend.sampled.
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
from attnlimit.models.attend.draws import Stream, first_of_order
from attnlimit.models.budget.budgets import HeadBudget
from attnlimit.models.see.call import Call
from attnlimit.models.see.masks import RuleMask

Block: TypeAlias = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]
"""Queries (m,), their outputs (B, h, m, dv) or None for the model's own, distinct keys (B, h, m), keys seen (B, _, m), and
which keys are read (B, _, m, keys), None where that would be too many to hold."""
Sizes: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From the softmax weights of queries and what they may draw from, both (B, h, m, keys): how many keys each draws, (B, h, m, 1)."""


def dense_blocks(
    call: Call, budgets: Sequence[HeadBudget], streams: list[list[Stream]], sizes: Sizes | None = None
) -> Iterator[Block]:
    """Block after block of the queries. `sizes` stands in for the budgets' n."""
    layer = _Layer(call, budgets, streams, sizes)
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
    ) -> None:
        self.call, self.budgets, self.streams, self.sizes = call, budgets, streams, sizes
        device = call.query.device
        self.n = torch.tensor([one.n or 0 for one in budgets], device=device)[:, None, None]
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
        seen, n = seen_keys(self.call, rows), self.n
        kept = self.kept(rows, seen) & seen
        if self.per_spread is not None:
            kept, n = self._following(rows, seen, kept)
        elif self.sizes is not None:
            scores = self.call.block_scores(rows).masked_fill(~seen, -torch.inf)
            n = self.sizes(self.call.weights(scores), (seen & ~kept).expand_as(scores))
        rest = seen & ~kept
        left = rest.sum(-1, keepdim=True)
        drawn = torch.minimum(left, n)
        start = None if self.start is None else self.start[:, :, rows]
        taken = first_of_order(rest, self.order, n, start)
        added = torch.full_like(taken, -torch.inf, dtype=torch.float32)
        added.masked_fill_(kept, 0.0)
        stands_for = (left / drawn.clamp_min(1)).log().where(self.rest, 0.0)
        added = torch.where(taken, stands_for.float(), added)
        shape = (len(added), len(self.budgets), len(rows))
        distinct = (kept.sum(-1) + drawn[..., 0]).expand(shape)
        read = (kept | taken).expand(*shape, -1)
        return self.call.attended(rows, added), distinct, seen.sum(-1).expand(len(added), -1, len(rows)), read

    def kept(self, rows: Int[Tensor, " m"], seen: Tensor) -> Bool[Tensor, "_ _ _ keys"]:
        """Keys that are kept, seen or not."""
        by_place = [replace(one.sampling.kept, top=0) for one in self.budgets]
        kinds = list(dict.fromkeys(by_place))
        parts = [placed_keys(self.call, kind, rows) for kind in kinds]
        if len(kinds) == 1:
            found = parts[0][:, None]
        else:
            parts = [part.expand(len(seen), max(p.shape[1] for p in parts), -1) for part in parts]
            found = torch.stack(parts, 1)[:, [kinds.index(kind) for kind in by_place]]
        tops = [one.sampling.kept.top for one in self.budgets]
        return found | self._top(rows, seen, tops) if any(tops) else found

    def _top(self, rows: Tensor, seen: Tensor, tops: list[int]) -> Bool[Tensor, "_ _ _ keys"]:
        scores = self.call.block_scores(rows).masked_fill(~seen, -torch.inf)
        found = torch.zeros_like(scores, dtype=torch.bool)
        for top in sorted(set(tops) - {0}):
            heads = [head for head, wanted in enumerate(tops) if wanted == top]
            found[:, heads] = top_keys(scores[:, heads], top)
        return found

    def _following(
        self, rows: Tensor, seen: Tensor, placed: Tensor
    ) -> tuple[Bool[Tensor, "b h m keys"], Int[Tensor, "b h m 1"]]:
        """What each query keeps and how many keys it draws (attnlimit.designs.by_query), from its own scores."""
        assert self.per_spread is not None
        call = self.call
        scores = call.block_scores(rows).masked_fill(~seen, -torch.inf)
        values = call.value.repeat_interleave(call.groups, 1).to(scores)
        share = contributions(call.weights(scores), values)
        free = (seen & ~placed).expand_as(scores)
        best = scores.topk(min(TOPS[-1], scores.shape[-1]), dim=-1).indices
        tops = torch.tensor(TOPS, device=scores.device).clamp_max(best.shape[-1])
        beyond = free.scatter(-1, best, False)

        def left(part: Tensor) -> Float[Tensor, "b h m tops"]:
            """Sums over what is left without the best: from the lightest on, so that no digits are lost."""
            some = (part * free).gather(-1, best)
            total = (part * beyond).sum(-1, keepdim=True) + some.flip(-1).cumsum(-1).flip(-1)
            return torch.cat([total, (part * beyond).sum(-1, keepdim=True)], -1)[..., tops]

        number = left(torch.ones_like(share))
        spreads = spread(number, left(share), left(share.square()))
        kept = seen.sum(-1, keepdim=True) - number
        chosen, n = choose(self.per_spread, spreads, number, kept)
        among = torch.arange(best.shape[-1], device=best.device) < tops[chosen]
        return (placed | torch.zeros_like(free).scatter(-1, best, among)) & seen, n.long()


def _first_token(call: Call, batch: int) -> int:
    """Where the text's first token is among the keys: after the padding on its left, before what a cache dropped."""
    if not isinstance(call.mask, RuleMask):
        return 0
    padding = call.mask.padding
    return (0 if padding is None else int(padding[batch].int().argmax())) - call.mask.key_start
