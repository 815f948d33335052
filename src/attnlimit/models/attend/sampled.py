"""A model that attends to its budgets' keys only.

For query i of a head with a budget (a sampling with its n), S_i the keys it keeps and J those drawn from the rest of what
it sees (R_i keys):

    out_i = ( Σ_{j∈S_i} e^{s_ij} v_j + c Σ_{j∈J} e^{s_ij} v_j ) / ( Σ_{j∈S_i} e^{s_ij} + c Σ_{j∈J} e^{s_ij} )

with c = R_i/n where drawn keys weigh for all the rest and c = 1 where they are plain, and s the model's own scores:
scaled, capped, biased; a sink adds to the denominator alone. This is what attnlimit.exact gives the mean square error of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.inputs import as_generator
from attnlimit.models.attend.dense import Sizes, dense_blocks, full_blocks
from attnlimit.models.attend.draws import Stream
from attnlimit.models.attend.sparse import sparse_blocks
from attnlimit.models.budget.budgets import Budgets, HeadBudget
from attnlimit.models.see.interface import Call, observe

DENSE_KEYS = 4096
"""Texts with more keys are gone through head by head."""


@dataclass(eq=False)
class Attended:
    """What was really attended to inside the block: totals over queries, by layer and head."""

    keys: Float[Tensor, "layers heads"]
    """Distinct keys, summed over queries (padded ones left out where the model says which they are)."""
    seen: Float[Tensor, "layers heads"]
    """Keys that full attention would have attended to."""
    queries: Float[Tensor, "layers heads"]
    group: Float[Tensor, "layers heads"]
    """Distinct keys that all query heads of the head's group read together, so what its key head gives; nan in texts too
    long to count them."""
    forward_calls: list[int] = field(default_factory=list)
    """How often each layer was called."""

    @property
    def share(self) -> float:
        """Keys attended to over those of full attention."""
        return float(self.keys.sum() / self.seen.sum())

    @property
    def key_head_share(self) -> float:
        """The same by key head: what memory sees."""
        return float(self.group.sum() / self.seen.sum())

    @property
    def keys_per_query(self) -> Float[Tensor, "layers heads"]:
        return self.keys / self.queries

    def __repr__(self) -> str:
        if not bool(self.seen.sum() > 0):
            return "Attended(nothing yet)"
        return f"Attended({float(self.keys_per_query.mean()):.4g} keys per query and head, {100 * self.share:.3g} %)"

    def to_dict(self) -> dict[str, object]:
        parts = {name: getattr(self, name).tolist() for name in ("keys", "seen", "queries", "group")}
        return {**parts, "share": self.share, "key_head_share": self.key_head_share}


@door
@contextmanager
def sampled_attention(
    model: Any,
    budgets: Budgets,
    *,
    generator: torch.Generator | int = 0,
    per_query: bool = True,
    sizes: Sizes | None = None,
) -> Iterator[Attended]:
    """Inside the block every head of the model attends to its budget's keys only; afterwards the model is as it was.

    Keys are drawn anew in every call of a layer, for every text of the batch and head, from `generator` (a seed, or a
    torch.Generator): for each query by itself, or without `per_query` in one order shared by all queries of the text,
    which reads fewer keys in all but lets errors add up downstream (see attnlimit.models.attend.draws). No key is drawn twice,
    as budgets have it, so a query that sees no more than its budget attends to all of it. Own token and window keep
    nothing in cross-attention, where a query has no key of its own. `sizes` is a rule that says how many keys each query
    draws, in place of the budgets' n (attnlimit.designs.denominator is one).
    Leaving raises ModelNotSupported if some layer did not come by.
    """
    budgets.check_fits(model)
    source = as_generator(generator)
    nothing = torch.zeros(budgets.layers, budgets.heads, dtype=torch.float64)
    attended = Attended(nothing, nothing.clone(), nothing.clone(), nothing.clone())

    def attend(call: Call) -> Tensor | None:
        if call.layer >= budgets.layers or call.heads != budgets.heads:
            raise InputError(
                f"Layer {call.layer} ({call.name}) has {call.heads} heads, but the budgets are for {budgets.layers} "
                f"layers of {budgets.heads} heads: budgets hold for the model they were made for."
            )
        chosen = budgets.layer(call.layer)
        return sampled_output(
            call, chosen, source, per_query=per_query, attended=attended, sizes=sizes, group=budgets.group
        )

    with observe(model, attend) as observed:
        attended.forward_calls = observed.calls
        yield attended


def sampled_output(
    call: Call,
    budgets: Sequence[HeadBudget],
    generator: torch.Generator | int,
    *,
    per_query: bool = True,
    attended: Attended | None = None,
    sizes: Sizes | None = None,
    group: int = 1,
) -> Tensor:
    """(B, Lq, Hq, dv): the output of one call under the heads' budgets. Full heads are the model's own.

    Each text of the batch and head (or `group` of heads, which keep and draw together) has its own stream of random numbers, so that the budget of one head does not
    change the draws of another, nor does the way it is computed: all heads at once, over all keys of a block of queries
    (attnlimit.models.attend.dense), or in long texts one by one, reading only the keys kept or drawn (attnlimit.models.attend.sparse).
    """
    size, heads, length, _ = call.query.shape
    keys = call.key.shape[2]
    seeds = torch.randint(2**62, (size, heads), generator=as_generator(generator)).tolist()
    full = [head for head, one in enumerate(budgets) if one.n is None]
    # draws of each query's own and keys kept for their score need all keys anyway
    following = [head for head, one in enumerate(budgets) if one.by_query is not None]
    few = [
        h
        for h, one in enumerate(budgets)
        if not (per_query or h in full + following or one.sampling.kept.top)
    ]
    few = few if keys > DENSE_KEYS and sizes is None and group == 1 else []
    rest = [head for head in range(heads) if head not in full + following + few]
    out = call.value.new_zeros(size, length, heads, call.value.shape[-1])
    union = None
    if attended is not None and call.groups > 1 and not few and keys <= DENSE_KEYS:
        shape = (size, call.key.shape[1], length, keys)
        union = torch.zeros(shape, dtype=torch.bool, device=call.query.device)
    if full:
        out.copy_(call.output())
    for some, blocks in (
        (full, full_blocks),
        (few, sparse_blocks),
        (rest, partial(dense_blocks, sizes=sizes, group=group)),
        (following, dense_blocks),
    ):
        if not some:
            continue
        starts = length if per_query else None
        drawing = [] if some is full else [head - head % group for head in some]
        streams = [[Stream(row[head], keys, starts) for head in drawing] for row in seeds]
        chosen = [budgets[head] for head in some]
        for rows, answer, distinct, seen, read in blocks(call.only(some), chosen, streams):
            if answer is not None:
                for place, head in enumerate(some):
                    out[:, rows, head] = answer[:, place]
            _refuse_nothing(call, chosen, distinct, seen)
            if attended is not None:
                _count(attended, call, rows, some, distinct, seen)
            if union is not None and read is not None:
                for place, head in enumerate(some):
                    union[:, head // call.groups, rows] |= read[:, place]
    if attended is not None and call.groups == 1:
        attended.group[call.layer] = attended.keys[call.layer]
    elif attended is not None:
        attended.group[call.layer] += torch.nan if union is None else _read_by_group(call, union)
    return out


def _read_by_group(call: Call, union: Bool[Tensor, "b key_heads l keys"]) -> Float[Tensor, " heads"]:
    read = union.sum(-1).double().cpu()
    if call.real is not None:
        read *= call.real[:, None].cpu()
    return read.sum((0, 2)).repeat_interleave(call.groups)


def _refuse_nothing(call: Call, budgets: Sequence[HeadBudget], distinct: Tensor, seen: Tensor) -> None:
    nothing = (distinct == 0) & (seen > 0)
    if call.sink is None and bool(nothing.any()):
        one = budgets[int(nothing.nonzero()[0, 1])]
        raise InputError(
            f"Layer {one.layer}, head {one.head}: a query sees none of its kept keys ({one.sampling.kept}) and samples none, "
            "so there is nothing to attend to. Sample at least one key."
        )


def _count(
    attended: Attended,
    call: Call,
    rows: Int[Tensor, " m"],
    heads: list[int],
    distinct: Int[Tensor, "b h m"],
    seen: Int[Tensor, "b _ m"],
) -> None:
    shape = distinct.shape
    real = torch.ones(shape[0], 1, shape[2], dtype=torch.bool, device=rows.device)
    if call.real is not None:
        real = call.real[:, rows.to(call.real.device)][:, None].to(rows.device)
    for total, part in (
        (attended.keys, distinct),
        (attended.seen, seen.expand(shape)),
        (attended.queries, torch.ones_like(distinct)),
    ):
        total[call.layer, heads] += (part * real).sum((0, 2)).double().cpu()
