"""A model that attends to its budgets' keys only.

For query i of a head with budget (kept set S_i, n), J the keys drawn from the rest of what it sees (R_i keys):

    out_i = ( Σ_{j∈S_i} e^{s_ij} v_j + c Σ_{j∈J} e^{s_ij} v_j ) / ( Σ_{j∈S_i} e^{s_ij} + c Σ_{j∈J} e^{s_ij} )

with c = R_i/n (importance: the drawn keys stand for the whole rest) or c = 1, and s the model's own scores: scaled,
capped, biased; a sink adds to the denominator alone. This is what attnlimit.exact gives the mean square error of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.exact.kept import Kept
from attnlimit.models.budgets import Budgets, HeadBudget
from attnlimit.models.draws import Draw, PerQuery, Rest, Shared
from attnlimit.models.interface import Call, observe
from attnlimit.models.masks import RuleMask, TensorMask
from attnlimit.numerics.inputs import as_generator

BLOCK = 2**21
"""Entries of the largest (queries, keys) array of one head."""
Part: TypeAlias = tuple[Tensor, Tensor]
"""Places among the keys, (p,) or (m, p), and the weight (m, p) that each query gives them; 0: none."""


@dataclass(eq=False)
class Attended:
    """What was really attended to inside the block: totals over queries, by layer and head."""

    keys: Float[Tensor, "layers heads"]
    """Distinct keys, summed over queries (padded ones left out where the model says which they are)."""
    seen: Float[Tensor, "layers heads"]
    """Keys that full attention would have attended to."""
    queries: Float[Tensor, "layers heads"]
    forward_calls: list[int] = field(default_factory=list)
    """How often each layer was called."""

    @property
    def share(self) -> float:
        """Keys attended to over those of full attention."""
        return float(self.keys.sum() / self.seen.sum())

    @property
    def keys_per_query(self) -> Float[Tensor, "layers heads"]:
        return self.keys / self.queries

    def __repr__(self) -> str:
        if not bool(self.seen.sum() > 0):
            return "Attended(nothing yet)"
        return f"Attended({float(self.keys_per_query.mean()):.4g} keys per query and head, {100 * self.share:.3g} %)"

    def to_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).tolist() for name in ("keys", "seen", "queries")}
        return {**parts, "share": self.share}


@contextmanager
def sampled_attention(
    model: Any,
    budgets: Budgets,
    *,
    generator: torch.Generator | int,
    per_query: bool = False,
    importance: bool = True,
    replacement: bool = True,
) -> Iterator[Attended]:
    """Inside the block every head of the model attends to its budget's keys only; afterwards the model is as it was.

    Keys are drawn anew in every call of a layer, for every text of the batch and head, from `generator` (a seed, or a
    torch.Generator): in one order shared by all queries of the text, or with `per_query` for each query by itself (see
    attnlimit.models.draws). With `replacement=False` no key is drawn twice, and a query that sees no more than its
    budget attends to all of it; the exact error curves are for draws with replacement. Own token and window keep
    nothing in cross-attention, where a query has no key of its own. Leaving raises ModelNotSupported if some layer did
    not come by.
    """
    budgets.check_fits(model)
    source = as_generator(generator)
    nothing = torch.zeros(budgets.layers, budgets.heads, dtype=torch.float64)
    attended = Attended(nothing, nothing.clone(), nothing.clone())

    def attend(call: Call) -> Tensor | None:
        if call.layer >= budgets.layers or call.heads != budgets.heads:
            raise InputError(
                f"Layer {call.layer} ({call.name}) has {call.heads} heads, but the budgets are for {budgets.layers} "
                f"layers of {budgets.heads} heads: budgets hold for the model they were made for."
            )
        return sampled_output(
            call,
            budgets.layer(call.layer),
            source,
            per_query=per_query,
            importance=importance,
            replacement=replacement,
            attended=attended,
        )

    with observe(model, attend) as observed:
        attended.forward_calls = observed.calls
        yield attended


def sampled_output(
    call: Call,
    budgets: Sequence[HeadBudget],
    generator: torch.Generator | int,
    *,
    per_query: bool = False,
    importance: bool = True,
    replacement: bool = True,
    attended: Attended | None = None,
) -> Tensor:
    """(B, Lq, Hq, dv): the output of one call under the heads' budgets. Full heads are the model's own.

    Each text of the batch and head has its own stream of random numbers, so that the budget of one head does not
    change the draws of another. Queries go in blocks; only keys that a block keeps or draws are read.
    """
    size, heads, length, _ = call.query.shape
    keys = call.key.shape[2]
    seeds = torch.randint(2**62, (size, heads), generator=as_generator(generator)).tolist()
    full = [one.sampled is None for one in budgets]
    out = call.output() if any(full) else call.value.new_zeros(size, length, heads, call.value.shape[-1])
    out = out.clone()  # not the model's own memory
    way = PerQuery if per_query else Shared
    for batch in range(size):
        draws: list[Draw | None] = [
            way(keys, one.sampled, replacement, torch.Generator().manual_seed(seed)) if one.sampled else None
            for one, seed in zip(budgets, seeds[batch], strict=True)
        ]
        for rows in torch.arange(length, device=call.query.device).split(max(1, BLOCK // keys)):
            block = _Block(call, batch, rows)
            for head, one in enumerate(budgets):
                distinct = block.seen(head)[1]
                if one.sampled is not None:
                    out[batch, rows, head], distinct = block.output(head, one, draws[head], importance)
                if attended is not None:
                    _count(attended, call, block, head, distinct)
    return out


class _Sets:
    """What m queries see, keep and leave, of all keys."""

    def __init__(self, seen: Bool[Tensor, "m keys"], kept: Bool[Tensor, "m keys"]) -> None:
        self.some_seen = seen.any(1)
        self.always = kept.any(0).nonzero()[:, 0]  # kept by some query
        self.kept, self.kept_count = kept[:, self.always], kept.sum(1)
        self.rest = Rest(seen & ~kept)


class _Block:
    """Some queries of one text. What heads share is computed once."""

    def __init__(self, call: Call, batch: int, rows: Tensor) -> None:
        self.call, self.batch, self.rows = call, batch, rows
        self.one_mask = not isinstance(call.mask, TensorMask) or call.mask.matrix.shape[1] == 1
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}
        self._sets: dict[tuple[int, Kept], _Sets] = {}

    def seen(self, head: int) -> tuple[Bool[Tensor, "m keys"], Int[Tensor, " m"]]:
        """Which keys each query sees, and how many."""
        which = 0 if self.one_mask else head
        if which not in self._seen:
            seen = ~self.call.hidden(self.batch, self.rows, which)
            self._seen = {which: (seen, seen.sum(1))}
        return self._seen[which]

    def sets(self, head: int, kept: Kept) -> _Sets:
        """Kept keys, of those that are seen. Sinks are the first real tokens of the text."""
        name = (0 if self.one_mask else head, kept)
        if name in self._sets:
            return self._sets[name]
        seen, own = self.seen(head)[0], self.call.own_key
        here = replace(kept, sinks=0) if own is not None else Kept(top=kept.top)
        scores = self.call.scores(self.batch, head, self.rows) if kept.top else seen.float()
        mask = here.mask(scores, None if own is None else self.rows + own)
        first = _first_token(self.call, self.batch)
        place = torch.arange(seen.shape[1], device=seen.device)
        mask |= (place >= first) & (place < first + kept.sinks)
        sets = _Sets(seen, mask & seen)
        if not kept.top:  # by score, a set is the head's own
            self._sets[name] = sets
        return sets

    def output(
        self, head: int, budget: HeadBudget, draw: Draw | None, importance: bool
    ) -> tuple[Float[Tensor, "m dv"], Tensor]:
        """The head's output for these queries, and the number of distinct keys that each attends to."""
        sets = self.sets(head, budget.kept)
        parts, distinct = [(sets.always, sets.kept.float())], sets.kept_count
        if draw is not None:
            drawn = draw(
                sets.rest
            )  # also when nothing is left to draw: the stream must not depend on the blocks
            stands_for = torch.ones_like(drawn.draws)
            if importance:
                stands_for = sets.rest.count / drawn.draws.clamp_min(1)
            parts.append((drawn.columns, (drawn.times * stands_for[:, None]).float()))
            distinct = distinct + drawn.distinct
        if self.call.sink is None and not bool((distinct > 0)[sets.some_seen].all()):
            raise InputError(
                f"Layer {budget.layer}, head {head}: a query sees none of its kept keys ({budget.kept}) and samples "
                "none, so there is nothing to attend to. Sample at least one key."
            )
        return self._average(head, _merged(parts, self.call.key.shape[2])), distinct

    def _average(self, head: int, parts: Sequence[Part]) -> Float[Tensor, "m dv"]:
        """Softmax over all parts together; a query that sees nothing (padding) gets zeros."""
        call, batch = self.call, self.batch
        each = [call.scores(batch, head, self.rows, columns) for columns, _ in parts]
        times = torch.cat([weight for _, weight in parts], 1).to(each[0])
        scores = torch.cat(each, 1).masked_fill_(times == 0, -torch.inf)
        top = (
            scores.amax(1, keepdim=True) if scores.shape[1] else scores.new_full((len(scores), 1), -torch.inf)
        )
        if call.sink is not None:
            top = top.clamp_min(call.sink[head].to(top))
        top = top.masked_fill(top == -torch.inf, 0.0)
        weights = scores.sub_(top).exp_().mul_(times)
        total = weights.sum(1, keepdim=True)
        if call.sink is not None:
            total = total + (call.sink[head].to(top) - top).exp()
        weights /= total.masked_fill(total == 0, 1.0)
        sizes = [columns.shape[-1] for columns, _ in parts]
        values = call.value[batch, head // call.groups].to(weights.dtype)
        out = values.new_zeros(len(weights), values.shape[1])
        for (columns, _), weight in zip(parts, weights.split(sizes, 1), strict=True):
            if columns.ndim == 1:
                out += weight @ values[columns]
            else:
                out += torch.einsum("mk,mkd->md", weight, values[columns])
        return out.to(call.value.dtype)


def _merged(parts: Sequence[Part], keys: int) -> Sequence[Part]:
    """The same weights over all keys at once where that is less to read: gathering each query's own keys costs about
    eight times as much per key as a product with all."""
    if sum((8 if columns.ndim == 2 else 1) * columns.shape[-1] for columns, _ in parts) < keys:
        return parts
    dense = parts[0][1].new_zeros(len(parts[0][1]), keys)
    for columns, weight in parts:
        dense.scatter_add_(1, columns.expand(weight.shape), weight)
    return [(torch.arange(keys, device=dense.device), dense)]


def _first_token(call: Call, batch: int) -> int:
    """Where the text's first token is among the keys: after the padding on its left, before what a cache dropped."""
    if not isinstance(call.mask, RuleMask):
        return 0
    padding = call.mask.padding
    return (0 if padding is None else int(padding[batch].int().argmax())) - call.mask.key_start


def _count(attended: Attended, call: Call, block: _Block, head: int, distinct: Tensor) -> None:
    real = torch.ones_like(block.rows, dtype=torch.bool)
    if call.real is not None:
        real = call.real[block.batch, block.rows.to(call.real.device)].to(real.device)
    attended.keys[call.layer, head] += float(distinct[real].sum())
    attended.seen[call.layer, head] += float(block.seen(head)[1][real].sum())
    attended.queries[call.layer, head] += float(real.sum())
