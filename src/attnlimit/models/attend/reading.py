"""Attention over the keys that queries read, from their scores: what they keep, and n drawn of the rest.

Drawn keys' weights are multiplied by c, the keys that each stands for. Compiled where numba is there
(attnlimit.models.attend.loops), in plain torch elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs.by_query import TOPS
from attnlimit.models.attend.draws import first_of_order
from attnlimit.models.see.call import Call
from attnlimit.numerics.compiled import has_numba, run_compiled


@dataclass(frozen=True, eq=False)
class Wanted:
    """What m queries of every text and head are to read. Heads of a group keep and draw together, as the first of them has it."""

    seen: Int[Tensor, "b h m 3"]
    """First key that a query sees, end, and how many of these."""
    placed: Int[Tensor, "b h m 6"]
    """Stretches of keys kept for their place, seen or not: begin, end, …"""
    top: Int[Tensor, "b h m"]
    """Keys of largest score that are kept."""
    n: Int[Tensor, "b h m"]
    order: Int[Tensor, "b groups size"]
    """Of the keys, and more; by group of heads."""
    start: Int[Tensor, "b h m"]
    rest: Bool[Tensor, " h"]
    """Whether drawn keys stand for all the rest."""
    group: int = 1

    def inside(self, keys: int) -> Bool[Tensor, "b h m keys"]:
        """Which keys are kept for their place."""
        place = torch.arange(keys, device=self.placed.device)
        begin, end = self.placed[..., ::2, None], self.placed[..., 1::2, None]
        sides = ((place >= begin[..., k, :]) & (place < end[..., k, :]) for k in range(begin.shape[-2]))
        return torch.stack(list(sides)).any(0)

    def only(self, heads: Sequence[int]) -> Wanted:
        """Of some heads, each by itself."""
        if len(heads) == self.n.shape[1]:
            return self
        parts = {name: getattr(self, name)[:, heads] for name in ("seen", "placed", "top", "n", "start")}
        return replace(self, rest=self.rest[heads], group=1, **parts)

    def rows(self) -> tuple[Tensor, ...]:
        """One row for each query of each text and head, as the compiled loops have it: seen, placed, top, n, order, start."""
        parts = [self.seen, self.placed, self.top, self.n, self.order, self.start]
        return tuple(
            one.reshape(-1, one.shape[-1]).contiguous() if k in (0, 1, 4) else one.reshape(-1).contiguous()
            for k, one in enumerate(parts)
        )


@dataclass(frozen=True, eq=False)
class Read:
    """What queries read: the outputs, and numbers of keys."""

    output: Float[Tensor, "b m h dv"]
    seen: Int[Tensor, "b h m"]
    distinct: Int[Tensor, "b h m"]
    """Keys that each head read."""
    together: Int[Tensor, "b key_heads m"]
    """Keys that the heads of a key head read together."""


def is_compiled(scores: Tensor) -> bool:
    """Whether the compiled loops know such numbers."""
    return has_numba() and scores.device.type == "cpu" and scores.dtype == torch.float32


def read_keys(
    call: Call, scores: Float[Tensor, "b h m keys"], values: Float[Tensor, "b _ _ dv"], wanted: Wanted
) -> Read:
    """Attention over what m queries are to read, of the first keys. Scores of hidden keys between others are −∞."""
    if not is_compiled(scores):
        return _plainly(call, scores, values, wanted)
    from attnlimit.models.attend import loops

    (size, heads, m, keys), key_heads = scores.shape, values.shape[1]
    out, distinct = scores.new_empty(size, heads, m, values.shape[-1]), torch.empty_like(wanted.n)
    together = distinct.new_empty(size, key_heads, m)
    flat = [scores.contiguous().view(-1, keys), values.contiguous().flatten(0, 1), *wanted.rows()]
    rest, sink = (one[:, None].expand(size, heads, m).reshape(-1) for one in (wanted.rest, sink_scores(call)))
    results = (out.flatten(0, 2), distinct.view(-1), together.view(-1, m))
    run_compiled(loops.attend_texts, size * key_heads * m, *flat, rest, sink, *results)
    return Read(out.transpose(1, 2), wanted.seen[..., 2], distinct, together)


def sink_scores(call: Call) -> Float[Tensor, " h"]:
    """−∞ where there is no sink."""
    return torch.full((call.heads,), -torch.inf) if call.sink is None else call.sink.float()


def _plainly(call: Call, scores: Tensor, values: Tensor, wanted: Wanted) -> Read:
    place = torch.arange(scores.shape[-1], device=scores.device)
    seen = (place >= wanted.seen[..., :1]) & (place < wanted.seen[..., 1:2]) & (scores > -torch.inf)
    scores = scores.masked_fill(~seen, -torch.inf)
    best = scores.topk(min(int(wanted.top.max()), scores.shape[-1]), dim=-1).indices
    among = torch.arange(best.shape[-1], device=best.device) < wanted.top[..., None]
    kept = (wanted.inside(len(place)) | torch.zeros_like(seen).scatter(-1, best, among)) & seen

    def shared(one: Tensor) -> Tensor:
        return one[:, :: wanted.group].repeat_interleave(wanted.group, 1)

    kept = kept.unflatten(1, (-1, wanted.group)).any(2).repeat_interleave(wanted.group, 1)
    left, n = (seen & ~kept).sum(-1, keepdim=True), shared(wanted.n)[..., None]
    order, start = (
        wanted.order.repeat_interleave(wanted.group, 1)[:, :, None],
        shared(wanted.start)[..., None],
    )
    taken = first_of_order(seen & ~kept, order, n, start)
    stands_for = (left / torch.minimum(left, n).clamp_min(1)).log().where(wanted.rest[:, None, None], 0.0)
    read = kept | taken
    scores = torch.where(taken, scores + stands_for.to(scores), scores).masked_fill(~read, -torch.inf)
    weights = call.weights(scores).unflatten(1, (values.shape[1], -1)).flatten(2, 3)
    out = (weights @ values[:, :, : len(place)].to(weights)).view(*scores.shape[:3], -1)
    together = read.unflatten(1, (values.shape[1], -1)).any(2).sum(-1)
    return Read(out.transpose(1, 2), wanted.seen[..., 2], read.sum(-1), together)


def rest_sums(
    scores: Float[Tensor, "b h m keys"], wanted: Wanted, part: Float[Tensor, "b h m keys"]
) -> tuple[Float[Tensor, "b h m tops"], ...]:
    """Number, Σ part and Σ part² over the keys that are seen and not kept for their place, without the top 0, 4, 8, … of `TOPS`:
    added up from the lightest on, so that no digits are lost."""
    tops = torch.tensor(TOPS, device=scores.device)
    if is_compiled(scores):
        from attnlimit.models.attend import loops

        sums = torch.zeros(*scores.shape[:3], 3, len(TOPS), dtype=torch.float64)
        rows = [one.contiguous().flatten(0, 2) for one in (scores, part, wanted.seen, wanted.placed)]
        run_compiled(loops.rest_sums, len(rows[0]), *rows, tops, sums.view(-1, 3, len(TOPS)))
        return tuple(sums.float().unbind(-2))
    free = (scores > -torch.inf) & ~wanted.inside(scores.shape[-1])
    best = scores.topk(min(TOPS[-1], scores.shape[-1]), dim=-1).indices
    beyond, tops = free.scatter(-1, best, False), tops.clamp_max(best.shape[-1])

    def left(one: Tensor) -> Tensor:
        some = (one * free).gather(-1, best)
        below = (one * beyond).sum(-1, keepdim=True)
        return torch.cat([below + some.flip(-1).cumsum(-1).flip(-1), below], -1)[..., tops]

    return left(torch.ones_like(part)), left(part), left(part.square())
