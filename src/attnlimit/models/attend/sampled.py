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
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.inputs import Seeded, as_generator
from attnlimit.models.attend.decoding import Decoder
from attnlimit.models.attend.dense import Sizes, attend_densely, seen_limits
from attnlimit.models.attend.draws import Stream
from attnlimit.models.attend.growing import growing_caches
from attnlimit.models.attend.reading import Read
from attnlimit.models.budget.budgets import Budgets, HeadBudget
from attnlimit.models.see.interface import Call, observe


@dataclass(eq=False)
class Attended:
    """What was really attended to inside the block: totals over queries, by layer and head."""

    totals: Float[Tensor, "4 layers heads"]
    forward_calls: list[int] = field(default_factory=list)
    """How often each layer was called."""

    @classmethod
    def nothing(cls, layers: int, heads: int) -> Attended:
        """Before the first call."""
        return cls(torch.zeros(4, layers, heads, dtype=torch.float64))

    @property
    def keys(self) -> Float[Tensor, "layers heads"]:
        """Distinct keys, summed over queries (padded ones left out where the model says which they are)."""
        return self.totals[0]

    @property
    def seen(self) -> Float[Tensor, "layers heads"]:
        """Keys that full attention would have attended to."""
        return self.totals[1]

    @property
    def queries(self) -> Float[Tensor, "layers heads"]:
        return self.totals[2]

    @property
    def group(self) -> Float[Tensor, "layers heads"]:
        """Distinct keys that all query heads of the head's group read together, so what its key head gives."""
        return self.totals[3]

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

    def count(self, call: Call, read: Read) -> None:
        """Add the queries of a call."""
        together = read.together.repeat_interleave(call.groups, 1)
        parts = torch.stack([read.distinct, read.seen, torch.ones_like(read.seen), together])
        if call.real is not None:
            parts = parts * call.real.to(parts.device)[:, None]
        self.totals[:, call.layer] += parts.sum((1, 3)).cpu()

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
    generator: Seeded = 0,
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
    attended = Attended.nothing(budgets.layers, budgets.heads)
    decoder = Decoder(source, budgets.group)

    def attend(call: Call) -> Tensor | None:
        if call.layer >= budgets.layers or call.heads != budgets.heads:
            raise InputError(
                f"Layer {call.layer} ({call.name}) has {call.heads} heads, but the budgets are for {budgets.layers} "
                f"layers of {budgets.heads} heads: budgets hold for the model they were made for."
            )
        chosen = budgets.layer(call.layer)
        step = None if sizes is not None else decoder.step(call, chosen)
        if step is not None:
            _refuse_nothing(call, chosen, step)
            attended.count(call, step)
            return step.output
        return sampled_output(
            call, chosen, source, per_query=per_query, attended=attended, sizes=sizes, group=budgets.group
        )

    with growing_caches(), observe(model, attend) as observed:
        attended.forward_calls = observed.calls
        yield attended


def sampled_output(
    call: Call,
    budgets: Sequence[HeadBudget],
    generator: Seeded,
    *,
    per_query: bool = True,
    attended: Attended | None = None,
    sizes: Sizes | None = None,
    group: int = 1,
) -> Tensor:
    """(B, Lq, Hq, dv): the output of one call under the heads' budgets. Full heads are the model's own.

    Each text of the batch and head (or `group` of heads, which keep and draw together) has its own stream of random numbers, so
    that the budget of one head does not change the draws of another, nor does the way queries are blocked.
    """
    size, heads, length, _ = call.query.shape
    seeds = torch.randint(2**62, (size, heads), generator=as_generator(generator)).tolist()
    streams = [
        [Stream(row[head - head % group], call.key.shape[2], length, per_query) for head in range(heads)]
        for row in seeds
    ]
    full = [head for head, one in enumerate(budgets) if one.n is None]
    if len(full) == heads:
        read = _full(call)
    else:
        read = attend_densely(call, budgets, streams, sizes, group)
        _refuse_nothing(call, budgets, read)
    if attended is not None:
        attended.count(call, read)
    out = read.output.to(call.value.dtype)
    if 0 < len(full) < heads:
        out[:, :, full] = call.output()[:, :, full]
    return out


def _full(call: Call) -> Read:
    texts, heads = call.query.shape[:2]
    blocks = [seen_limits(call, rows)[..., 2].expand(texts, heads, len(rows)) for rows in call.blocks(1)]
    seen = torch.cat(blocks, 2)
    return Read(call.output(), seen, seen, seen[:, :1].expand(-1, call.key.shape[1], -1))


def _refuse_nothing(call: Call, budgets: Sequence[HeadBudget], read: Read) -> None:
    if call.sink is not None or bool(read.distinct.all()):
        return
    nothing = (read.distinct == 0) & (read.seen > 0) & real_queries(call)[:, None]
    if bool(nothing.any()):
        one = budgets[int(nothing.nonzero()[0, 1])]
        raise InputError(
            f"Layer {one.layer}, head {one.head}: a query sees none of its kept keys ({one.sampling.kept}) and samples none, "
            "so there is nothing to attend to. Sample at least one key."
        )


def real_queries(call: Call) -> Bool[Tensor, "b m"]:
    """Which queries are no padding, as far as the model says."""
    if call.real is None:
        return torch.ones(len(call.query), call.query.shape[2], dtype=torch.bool, device=call.query.device)
    return call.real.to(call.query.device)
