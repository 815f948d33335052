"""The weights of the keys that queries read, from their scores: what they keep, and n drawn of the rest.

Drawn keys' weights are multiplied by c, the keys that each stands for, and those of keys that are not read are 0. Compiled
where numba is there (attnlimit.models.attend.loops), in plain torch elsewhere.
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

    def by_group(self, one: Tensor) -> Tensor:
        """Numbers (b, h, m) of the first head of each group, in one row."""
        return one[:, :: self.group].reshape(-1).contiguous()

    def by_row(self, one: Tensor) -> Tensor:
        """(b, h, m, k) as rows with the heads of a group side by side."""
        if self.group > 1:
            one = one.unflatten(1, (-1, self.group)).transpose(2, 3).contiguous()
        return one.reshape(-1, one.shape[-1]).contiguous()


def is_compiled(scores: Tensor) -> bool:
    """Whether the compiled loops know such numbers."""
    return has_numba() and scores.device.type == "cpu" and scores.dtype == torch.float32


def read_weights(
    call: Call, scores: Float[Tensor, "b h m keys"], wanted: Wanted
) -> tuple[Float[Tensor, "b h m keys"], Bool[Tensor, "b h m keys"]]:
    """Softmax weights of all keys, and which are read. Scores of hidden keys between others are −∞; the scores may be written
    over."""
    if not is_compiled(scores):
        return _plain_weights(call, scores, wanted)
    from attnlimit.models.attend import loops

    size, heads, m, keys = scores.shape
    rows = wanted.by_row(scores)
    seen = wanted.by_row(wanted.seen)
    best = torch.empty(len(rows), -(-keys // loops.TILE))
    run_compiled(loops.tile, len(rows), rows, seen, best)
    marks, chosen, counts = choose_keys(rows, best, seen, wanted)
    sinks = wanted.by_row(sink_scores(call)[:, None, None].expand(size, heads, m, 1))
    rest = wanted.by_group(wanted.rest[:, None].expand(size, heads, m))
    run_compiled(loops.weigh, len(counts), rows, chosen, counts, rest, sinks.view(-1))
    read = ((marks == 1) | (marks == 2))[:, :keys].view(size, -1, m, keys)
    if wanted.group == 1:
        return rows.view(scores.shape), read
    weights = rows.view(size, -1, m, wanted.group, keys).transpose(2, 3).reshape(scores.shape)
    return weights, read.repeat_interleave(wanted.group, 1)


def sink_scores(call: Call) -> Float[Tensor, " h"]:
    """−∞ where there is no sink."""
    return torch.full((call.heads,), -torch.inf) if call.sink is None else call.sink.float()


def choose_keys(
    rows: Tensor, best: Tensor, seen: Int[Tensor, "rows 3"], wanted: Wanted
) -> tuple[Tensor, Tensor, Tensor]:
    """Marks, list and counts of what groups of rows read, as attnlimit.models.attend.loops has them."""
    from attnlimit.models.attend import loops

    groups, keys = len(rows) // wanted.group, rows.shape[1]
    marks = torch.empty(groups, -(-keys // 8) * 8, dtype=torch.int8)
    counts = torch.empty(groups, 3, dtype=torch.int64)
    placed = wanted.by_row(wanted.placed)
    top, n = wanted.by_row(wanted.top[..., None]).view(-1), wanted.by_group(wanted.n)
    run_compiled(loops.keep, groups, rows, best, seen, placed, top, marks)
    most = (placed[:, 1::2] - placed[:, ::2]).sum(1).view(groups, -1).sum(1) + top.view(groups, -1).sum(1) + n
    chosen = torch.empty(groups, min(keys, int(most.max())), dtype=torch.int32)
    order = wanted.order.reshape(-1, wanted.order.shape[-1])
    run_compiled(loops.draw, groups, seen, n, order, wanted.by_group(wanted.start), marks, chosen, counts)
    return marks, chosen, counts


def _plain_weights(call: Call, scores: Tensor, wanted: Wanted) -> tuple[Tensor, Tensor]:
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
    read = torch.where(taken, scores + stands_for.to(scores), scores).masked_fill(~(kept | taken), -torch.inf)
    return call.weights(read), kept | taken


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
        run_compiled(loops.rest, len(rows[0]), *rows, tops, sums.view(-1, 3, len(TOPS)))
        return tuple(sums.float().unbind(-2))
    free = (scores > -torch.inf) & ~wanted.inside(scores.shape[-1])
    best = scores.topk(min(TOPS[-1], scores.shape[-1]), dim=-1).indices
    beyond, tops = free.scatter(-1, best, False), tops.clamp_max(best.shape[-1])

    def left(one: Tensor) -> Tensor:
        some = (one * free).gather(-1, best)
        below = (one * beyond).sum(-1, keepdim=True)
        return torch.cat([below + some.flip(-1).cumsum(-1).flip(-1), below], -1)[..., tops]

    return left(torch.ones_like(part)), left(part), left(part.square())
