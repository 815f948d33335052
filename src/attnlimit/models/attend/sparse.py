"""Sampled attention in long texts: text by text and head by head, so that only keys kept or drawn are read.

For queries that share one random order of the keys, and keep keys for their place alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.designs import Kept, Sampling
from attnlimit.models.attend.dense import Block, placed_keys, seen_keys
from attnlimit.models.attend.draws import Stream, few_of_order
from attnlimit.models.budget.budgets import HeadBudget
from attnlimit.models.see.call import Call


def sparse_blocks(call: Call, budgets: Sequence[HeadBudget], streams: list[list[Stream]]) -> Iterator[Block]:
    """Block after block of the queries."""
    for rows in call.blocks(1):
        seen = seen_keys(call, rows).expand(len(call.query), -1, len(rows), -1)
        answer = call.value.new_zeros(*call.query.shape[:2], len(rows), call.value.shape[-1])
        distinct = torch.zeros(answer.shape[:3], dtype=torch.long, device=rows.device)
        for batch, row in enumerate(streams):
            known: dict[tuple[int, Kept], _Sets] = {}
            for head, (one, stream) in enumerate(zip(budgets, row, strict=True)):
                which = 0 if seen.shape[1] == 1 else head
                always = one.sampling.kept
                if (which, always) not in known:
                    kept = placed_keys(call, always, rows).expand(len(seen), len(rows), -1)[batch]
                    known[which, always] = _Sets(seen[batch, which], kept & seen[batch, which])
                sets = known[which, always]
                columns, weights = sets.weights(stream.order.to(rows.device), one.n or 0, one.sampling)
                distinct[batch, head] = (weights > 0).sum(1)
                answer[batch, head] = _average(call, batch, head, rows, columns, weights)
        yield rows, answer, distinct, seen.sum(-1), None


class _Sets:
    """What m queries keep, and what they leave to be drawn."""

    def __init__(self, seen: Bool[Tensor, "m keys"], kept: Bool[Tensor, "m keys"]) -> None:
        self.columns = kept.any(0).nonzero()[:, 0]
        self.kept, self.rest = kept[:, self.columns], seen & ~kept

    def weights(self, order: Tensor, n: int, sampling: Sampling) -> tuple[Tensor, Float[Tensor, "m columns"]]:
        """Places among the keys, and what each query multiplies their weight by: 1 if kept, R/n if drawn."""
        if n == 0:
            return self.columns, self.kept.float()
        columns, taken = few_of_order(self.rest, order, n)
        left = self.rest.sum(1, keepdim=True).float()
        stands_for = sampling.stands_for(left, torch.full_like(left[:1], n))
        return torch.cat([self.columns, columns]), torch.cat([self.kept.float(), taken * stands_for], 1)


def _average(
    call: Call, batch: int, head: int, rows: Tensor, columns: Tensor, weights: Tensor
) -> Float[Tensor, "m dv"]:
    """Softmax over the columns; a query that sees nothing (padding) gets zeros."""
    scores = call.scores(batch, head, rows, columns) + weights.log()
    values = call.value[batch, head // call.groups, columns]
    share = call.weights(scores[None, None], head)[0, 0]
    return (share @ values.to(share)).to(call.value.dtype)
