"""Sampled attention of all texts and heads of a layer at once, some queries at a time.

Scores are made once by a matrix product, and attnlimit.models.attend.reading attends to the keys that are read. For single queries
with many keys, see attnlimit.models.attend.decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs.by_query import TOPS, choose, contributions, spread
from attnlimit.designs.kept import top_keys
from attnlimit.errors import InputError
from attnlimit.inputs import shown
from attnlimit.models.attend.draws import Stream
from attnlimit.models.attend.reading import Read, Wanted, is_compiled, read_keys, rest_sums
from attnlimit.models.budget.budgets import HeadBudget
from attnlimit.models.see.call import Call, wide
from attnlimit.models.see.masks import RuleMask

Sizes: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From the softmax weights of queries and what they may draw from, both (B, h, m, keys): how many keys each draws, (B, h, m, 1)."""
PARTS = 4
"""Blocks of queries are so many times smaller than those of full attention: a later one sees more keys, and caches are small."""


def attend_densely(
    call: Call,
    budgets: Sequence[HeadBudget],
    streams: list[list[Stream]],
    sizes: Sizes | None = None,
    group: int = 1,
) -> Read:
    """All queries. `sizes` stands in for the budgets' n; `group` heads keep and draw together."""
    layer = Layer(call, budgets, streams, sizes, group)
    blocks = [layer.block(rows) for rows in call.blocks(call.heads * PARTS)]
    if len(blocks) == 1:
        return blocks[0]
    out = torch.cat([one.output for one in blocks], 1)
    return Read(
        out,
        torch.cat([one.seen for one in blocks], 2),
        torch.cat([one.distinct for one in blocks], 2),
        torch.cat([one.together for one in blocks], 2),
    )


def seen_keys(call: Call, rows: Int[Tensor, " m"]) -> Bool[Tensor, "_ _ _ keys"]:
    """Which keys each query sees; one row where all queries see the same, one head where all heads do."""
    return call.seen(rows[:1] if call.mask.alike else rows)


def seen_limits(call: Call, rows: Int[Tensor, " m"]) -> Int[Tensor, "_ _ _ 3"]:
    """First key that each query sees, end, and how many of these; three zeros for nothing."""
    keys, plain = call.key.shape[2], call.mask.plain
    if plain == "all":
        return torch.tensor([0, keys, keys], device=rows.device).view(1, 1, 1, 3)
    if plain == "causal":
        return torch.stack([torch.zeros_like(rows), rows + 1, rows + 1], -1)[None, None]
    return limits(seen_keys(call, rows))


def limits(seen: Bool[Tensor, "b h m keys"]) -> Int[Tensor, "b h m 3"]:
    """The same from which keys are seen."""
    count, keys = seen.sum(-1), seen.shape[-1]
    some = (count > 0).long()
    whole = seen.to(torch.int8)
    return torch.stack([whole.argmax(-1), (keys - whole.flip(-1).argmax(-1)) * some, count], -1)


def placed_stretches(
    call: Call, budgets: Sequence[HeadBudget], rows: Int[Tensor, " m"]
) -> Int[Tensor, "b h m 6"]:
    """Keys that are kept for their place, seen or not: begin and end of sinks (the first real tokens of the text), of the window
    and of what is around. Own token and window keep nothing where a query has no key of its own."""
    kept = [one.sampling.kept for one in budgets]

    def by_head(numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=rows.device)[:, None]

    first = _first_tokens(call).to(rows.device)[:, None, None]
    none = torch.zeros_like(rows)
    sides = [first, first + by_head([one.sinks for one in kept]), none, none, none, none]
    if call.own_key is not None:
        own, around = rows + call.own_key, by_head([one.around for one in kept])
        window = by_head([max(one.window, int(one.own)) for one in kept])
        start = (own - around // 2).minimum(call.key.shape[2] - around).clamp_min(0)
        sides[2:] = [own + 1 - window, own + 1, start, start + around]
    shape = (len(call.query), call.heads, len(rows))
    return torch.stack([side.expand(shape) for side in sides], -1)


class Layer:
    """One call of a layer, all of its heads sampled; full ones draw everything."""

    def __init__(
        self,
        call: Call,
        budgets: Sequence[HeadBudget],
        streams: list[list[Stream]],
        sizes: Sizes | None = None,
        group: int = 1,
    ) -> None:
        self.call = replace(
            call, query=call.query.contiguous(), key=call.key.contiguous()
        )  # once, not block by block
        self.budgets, self.sizes, self.group = budgets, sizes, group
        device, keys = call.query.device, call.key.shape[2]
        self.n = torch.tensor([keys if one.n is None else one.n for one in budgets], device=device)[:, None]
        self.top = torch.tensor([one.sampling.kept.top for one in budgets], device=device)[:, None]
        self.following = [head for head, one in enumerate(budgets) if one.by_query is not None]
        self.rest = torch.tensor([one.sampling.weight == "rest" for one in budgets], device=device)
        self.order = torch.stack([torch.stack([one.order for one in row[::group]]) for row in streams]).to(
            device
        )
        self.values = wide(call.value).contiguous()
        self.start = torch.stack([torch.stack([one.start for one in row]) for row in streams]).to(device)

    def block(self, rows: Int[Tensor, " m"]) -> Read:
        """What some queries read."""
        call, shape = self.call, (len(self.call.query), self.call.heads, len(rows))
        known = seen_limits(call, rows)
        stretch = slice(0, max(1, int(known[..., 1].max())))
        scores = call.block_scores(rows, stretch)
        holes = bool((known[..., 1] - known[..., 0] > known[..., 2]).any())
        if holes or self.following or self.sizes is not None or not is_compiled(scores):
            scores = scores.masked_fill_(~seen_keys(call, rows)[..., stretch], -torch.inf)
        wanted = Wanted(
            seen=known.expand(*shape, 3),
            placed=placed_stretches(call, self.budgets, rows),
            top=self.top.expand(shape),
            n=self.n.expand(shape),
            order=self.order,
            start=self.start[:, :, rows],
            rest=self.rest,
            group=self.group,
        )
        if self.following or self.sizes is not None:
            wanted = self.sized(scores, wanted)
        return read_keys(call, scores, self.values, wanted)

    def sized(self, scores: Float[Tensor, "b h m keys"], wanted: Wanted) -> Wanted:
        """With as many top and drawn keys as suits each query: by a rule, or (attnlimit.designs.by_query) as it follows."""
        if self.sizes is not None:
            seen, inside = scores > -torch.inf, wanted.inside(scores.shape[-1])
            best = [top_keys(scores[:, h], one.sampling.kept.top) for h, one in enumerate(self.budgets)]
            rest = seen & ~inside & ~torch.stack(best, 1)
            found: object = self.sizes(self.call.weights(scores), rest)
            if not isinstance(found, Tensor) or found.shape != (*rest.shape[:-1], 1):
                raise InputError(
                    f"sizes must give numbers of keys of shape {(*rest.shape[:-1], 1)}, one a query, it gave {shown(found)}."
                )
            return replace(wanted, n=found[..., 0].long())
        some, top, n = self.following, wanted.top.clone(), wanted.n.clone()
        few, given = self.call.only(some), scores if len(some) == self.call.heads else scores[:, some]
        values = few.value[:, :, : scores.shape[-1]].repeat_interleave(few.groups, 1).to(scores)
        plain = few.sink is None and bool((wanted.seen[..., 2] > 0).all())  # then torch has it in one go
        share = contributions(given.softmax(-1) if plain else few.weights(given), values)
        number, total, square = rest_sums(given, wanted.only(some), share)
        kept = wanted.seen[:, some, :, 2:] - number
        per_spread = torch.tensor([self.budgets[head].by_query for head in some], device=scores.device)
        chosen, drawn = choose(per_spread[:, None, None], spread(number, total, square), number, kept)
        top[:, some] = torch.tensor(TOPS, device=scores.device)[chosen[..., 0]]
        n[:, some] = drawn[..., 0].long()
        return replace(wanted, top=top, n=n)


def _first_tokens(call: Call) -> Int[Tensor, " b"]:
    """Where the texts' first tokens are among the keys: after the padding on the left, before what a cache dropped."""
    if not isinstance(call.mask, RuleMask):
        return torch.zeros(len(call.query), dtype=torch.long)
    if call.mask.padding is None:
        return torch.full((len(call.query),), -call.mask.key_start)
    return call.mask.padding.int().argmax(1).expand(len(call.query)) - call.mask.key_start
