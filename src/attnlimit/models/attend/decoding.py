"""A decoding step that reads only what the budgets say: one query of each text, many keys.

All keys are scanned, but in int8 copies that are kept from step to step and grow with the cache: an eighth of the keys and values.
The scan finds the top keys; scores and values are then read of the keys that are kept or drawn, and no others:

    out = ( Σ_{j∈S} e^{s_j} v_j + (R/n) Σ_{j∈J} e^{s_j} v_j ) / ( Σ_{j∈S} e^{s_j} + (R/n) Σ_{j∈J} e^{s_j} ),   s exact.

The kept S need not be the very top: whatever it is, J is uniform over the other R keys, so the sums are right on average, and
attnlimit.exact gives the error of that S. A copy out of date would be a worse choice of S, not a wrong answer; in every step some
copies are compared with their keys (the latest, and others all over), and made anew where one differs: after another text, a cropped
or a reordered cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.models.attend.dense import placed_stretches, seen_limits
from attnlimit.models.attend.reading import Read, Wanted, is_compiled, sink_scores
from attnlimit.models.budget.budgets import HeadBudget
from attnlimit.models.see.call import Call
from attnlimit.models.see.masks import RuleMask
from attnlimit.numerics.compiled import run_compiled

LEAST_KEYS = 2048
"""With fewer keys it is as fast to make all scores."""
TILE = 16
"""Keys whose best score is noted together (as in attnlimit.models.attend.scanning)."""
MANY = 2**40
"""Keys: more than there are."""
ROOM = 1024
"""Keys that there is room for beyond those of the text, at least."""


@dataclass(eq=False)
class Copies:
    """The keys of one layer in int8, and random orders of them."""

    small: Int[Tensor, "pairs tiles d 16"]
    """TILE neighbours side by side, dimension after dimension: they are scored together."""
    unit: Float[Tensor, "pairs d"]
    """What 1 is, by dimension."""
    order: Int[Tensor, "b groups room"]
    scores: Float[Tensor, "rows room"]
    """Of the last scan: new memory is slow at first."""
    best: Float[Tensor, "rows tiles"]
    filled: int = 0

    @property
    def room(self) -> int:
        """Keys that there is room for."""
        return self.scores.shape[1]

    @classmethod
    def make(cls, call: Call, keys: int, group: int, generator: torch.Generator) -> Copies:
        """Room for the keys, none copied yet."""
        size, key_heads, _, d = call.key.shape
        room = (keys + max(ROOM, keys // 4)) // TILE * TILE + TILE
        order = [
            torch.randperm(room, generator=generator, dtype=torch.int32)
            for _ in range(size * call.heads // group)
        ]
        return cls(
            torch.zeros(size * key_heads, room // TILE, d, TILE, dtype=torch.int8),
            torch.ones(size * key_heads, d),
            torch.stack(order).view(size, -1, room),
            torch.zeros(size * call.heads, room),
            torch.zeros(size * call.heads, room // TILE),
        )

    def follow(self, key: Float[Tensor, "pairs _ d"], keys: int) -> None:
        """Copy what is new; the last key always is."""
        from attnlimit.models.attend import scanning

        old = min(self.filled, keys - 1)
        given = (key, torch.tensor([old, keys]), self.unit, self.small)
        run_compiled(scanning.copy, len(self.small), *given, threads=1 if old else None)
        self.filled = keys


@dataclass(eq=False)
class Rows:
    """What a step is to read, as the compiled loops have it: one row for each text and head. See `Wanted`."""

    seen: Int[Tensor, "rows 3"]
    placed: Int[Tensor, "rows 6"]
    top: Int[Tensor, " rows"]
    n: Int[Tensor, " rows"]
    start: Int[Tensor, " rows"]
    rest: Bool[Tensor, " rows"]
    sink: Float[Tensor, " rows"]
    numbers: Float[Tensor, " two"]
    """Scale of scores and their cap (0: none)."""
    group: int
    most: int
    """Keys that a group reads at most."""
    own: int
    """Place of the query's own key (0: it has none)."""

    @classmethod
    def of(cls, call: Call, wanted: Wanted) -> Rows:
        """From what is wanted of one query of each text and head."""
        seen, placed, top, n, _, start = wanted.rows()
        size, group = len(call.query), wanted.group
        kept = ((placed[:, 1::2] - placed[:, ::2]).sum(1) + top).view(-1, group).sum(1)
        return cls(
            seen=seen,
            placed=placed,
            top=top,
            n=n,
            start=start,
            rest=wanted.rest.repeat(size),
            sink=sink_scores(call).repeat(size),
            numbers=torch.tensor([call.scale, call.softcap or 0.0]),
            group=group,
            most=int((kept + n[::group]).max()),
            own=call.own_key or 0,
        )


@dataclass(eq=False)
class Decoder:
    """Decoding steps of a model, with the copies of its layers' keys."""

    generator: torch.Generator
    group: int = 1
    copies: dict[int, Copies] = field(default_factory=dict)
    rows: dict[int, tuple[object, Rows]] = field(default_factory=dict)
    _seen: tuple[object, Tensor | None] = (None, None)

    def step(self, call: Call, budgets: Sequence[HeadBudget]) -> Read | None:
        """The step, or None for calls that are none, or that it does not know: several queries, few keys, position bias, masks
        with holes, caches that drop keys, queries that follow their spread, other numbers than float32 on the CPU."""
        seen = self.seen(call) if _known(call, budgets, self.group) else None
        if seen is None:
            return None
        keys = int(seen[..., 1].max())
        copies = self._copies(call, keys)
        return read_step(call, self._rows(call, tuple(budgets), seen, copies), copies)

    def _rows(self, call: Call, budgets: tuple[HeadBudget, ...], seen: Tensor, copies: Copies) -> Rows:
        """Those of the layer's last step, moved on to this one's query, where that alone is another; else new ones."""
        shape, mask = (len(call.query), call.heads, 1), call.mask
        start = torch.randint(copies.room, shape, generator=self.generator)
        kind = (*budgets, shape, call.scale, call.softcap, call.own_key is None)
        moves = isinstance(mask, RuleMask) and mask.padding is None and call.sink is None
        moves &= not any(one.sampling.kept.around for one in budgets)
        known, rows = self.rows.get(call.layer, (None, None)) if moves else (None, None)
        if rows is not None and known == kind:
            rows.seen, rows.start = seen.expand(*shape, 3).reshape(-1, 3).contiguous(), start.flatten()
            if call.own_key is not None:
                rows.placed[:, 2:] += call.own_key - rows.own
                rows.own = call.own_key
            return rows
        wanted = Wanted(
            seen=seen.expand(*shape, 3),
            placed=placed_stretches(call, budgets, torch.zeros(1, dtype=torch.long)),
            top=torch.tensor([one.sampling.kept.top for one in budgets])[:, None].expand(shape),
            n=torch.tensor([MANY if one.n is None else one.n for one in budgets])[:, None].expand(shape),
            order=copies.order,
            start=start,
            rest=torch.tensor([one.sampling.weight == "rest" for one in budgets]),
            group=self.group,
        )
        rows = Rows.of(call, wanted)
        if moves:
            self.rows[call.layer] = kind, rows
        return rows

    def seen(self, call: Call) -> Int[Tensor, "b _ 1 3"] | None:
        """The stretch of keys that each query sees, None where it has holes; found once for all layers."""
        if self._seen[0] is not call.mask:
            found = seen_limits(call, torch.zeros(1, dtype=torch.long))
            holes = bool((found[..., 1] - found[..., 0] > found[..., 2]).any())
            self._seen = (call.mask, None if holes else found)
        return self._seen[1]

    def _copies(self, call: Call, keys: int) -> Copies:
        known = self.copies.get(call.layer)
        pairs = (len(call.query) * call.key.shape[1], call.key.shape[3])
        if known is None or known.unit.shape != pairs or known.room < keys:
            made = Copies.make(call, keys, self.group, self.generator)
            if known is not None and known.unit.shape == pairs:
                made.small[:, : known.small.shape[1]] = known.small
                made.unit, made.filled = known.unit, known.filled
            self.copies[call.layer] = known = made
        known.follow(by_pair(call.key), keys)
        return known


def by_pair(one: Float[Tensor, "b heads n d"]) -> Float[Tensor, "pairs rows d"]:
    """In one piece, each text and head: as it is where it has room for more rows between heads, which come along."""
    (size, heads, n, d), (text, head, *inside), start = one.shape, one.stride(), one.storage_offset()
    rows = head // d
    fits = rows >= n and (size == 1 or text == heads * head) and (head, *inside) == (rows * d, d, 1)
    if not fits or start + size * heads * rows * d > one.untyped_storage().nbytes() // one.itemsize:
        return one.contiguous().flatten(0, 1)
    return one.as_strided((size * heads, rows, d), (head, d, 1))


def _known(call: Call, budgets: Sequence[HeadBudget], group: int) -> bool:
    return (
        call.query.shape[2] == 1
        and call.key.shape[2] >= LEAST_KEYS
        and isinstance(call.mask, RuleMask)
        and call.mask.key_start == 0
        and call.bias is None
        and call.groups % group == 0
        and all(is_compiled(one) for one in (call.query, call.key, call.value))
        and not any(one.by_query is not None for one in budgets)
    )


def read_step(
    call: Call, rows: Rows, copies: Copies, order: Int[Tensor, "b groups room"] | None = None
) -> Read:
    """Scan the copies, choose keys, and attend to them. They are drawn in the copies' orders, or those told."""
    from attnlimit.models.attend import loops, scanning

    (size, heads, _, _), (pairs, tiles), group = call.query.shape, copies.small.shape[:2], rows.group
    query = call.query.reshape(size * heads, -1).contiguous()
    key, value = by_pair(call.key), by_pair(call.value)
    order = (copies.order if order is None else order).flatten(0, 1)
    steps = pairs * -(-tiles // scanning.STRETCH)
    run_compiled(
        scanning.scan, steps, query, copies.unit, copies.small, rows.seen, copies.scores, copies.best
    )
    out = torch.empty(size * heads, call.value.shape[-1])
    read = torch.empty(size * heads // group, dtype=torch.long)
    chosen = torch.empty(len(read), min(copies.room, rows.most), dtype=torch.int32)
    scans, sizes = (copies.scores, copies.best), (rows.top, rows.n)
    given = (query, key, value, *scans, rows.seen, rows.placed, *sizes, order, rows.start)
    run_compiled(loops.attend_steps, len(read), *given, rows.rest, rows.numbers, rows.sink, out, chosen, read)
    together = read
    if group < call.groups:
        together = torch.empty(pairs, dtype=torch.long)
        run_compiled(loops.count_together, pairs, chosen, read, copies.scores[0], together, threads=1)
    seen = rows.seen[:, 2].view(size, heads, 1)
    distinct = read.view(size, -1, 1).repeat_interleave(group, 1)
    return Read(out.view(size, 1, heads, -1), seen, distinct, together.view(size, -1, 1))
