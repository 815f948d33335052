"""One attention call of one layer, as the model makes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.models.see.masks import Mask, TensorMask, pick
from attnlimit.numerics.laplace import WIDEST

BLOCK = 2**22
"""Entries of the largest array over texts, heads, queries and keys: 16 MB in float32."""
MOST_SPREAD = WIDEST - 1000
"""Of scores, which the grid goes somewhat beyond."""


@dataclass(frozen=True, eq=False)
class Call:
    """out_i = Σ_j softmax_j(s_ij) v_j with s = cap·tanh(scale·q·k/cap) + bias over the keys that query i sees.

    query (B, Hq, Lq, d), key (B, Hkv, Lk, d) and value (B, Hkv, Lk, dv) are what the model attends with: after
    rotary positions, norms of queries and keys, and the cache. Query head h uses key head h // groups. softcap
    None leaves scores as they are; bias broadcasts to (B, Hq, Lq, Lk); sink (Hq,) is the score of a key without
    value, which takes weight and gives nothing.

    real (B, Lq) is False for padded queries, None if nothing says which they are. own_key is the index of query
    row 0's own key (row i's is own_key + i), None in cross-attention, where a query has no key of its own.
    """

    layer: int
    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    groups: int
    mask: Mask = field(repr=False)
    softcap: float | None = None
    bias: Tensor | None = None
    sink: Tensor | None = None
    real: Tensor | None = None
    own_key: int | None = None

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    def scores(
        self, batch: int, head: int, rows: Tensor | slice, keys: Tensor | slice | None = None
    ) -> Tensor:
        """(m, k), at least float32: scaled, capped, biased scores; −inf for keys the query does not see.

        rows picks m of the queries; keys picks k of the keys, the same for every row (k,) or its own for each
        row (m, k); None is all keys. The sink is not among them.
        """
        row, column = self._rows(rows), self._keys(keys)
        q = wide(self.query[batch, head, row])
        k = self.key[batch, head // self.groups]
        if column.ndim == 1:
            s = q @ wide(k if keys is None else k[column]).mT * self.scale
        else:
            s = torch.einsum("md,mkd->mk", q, wide(k[column])) * self.scale
        s = _capped(s, self.softcap)
        place = torch.full((1, 1), batch, device=row.device)
        extra = self._extra(place, head, row[:, None], column)
        s = s if extra is None else s + extra.to(s)
        return s.masked_fill(self.hidden(batch, rows, head, keys), -torch.inf)

    def check_spread(self, scores: Tensor, head: int) -> None:
        """Refuse scores (…, m, k) that are so far apart that there are no exact errors of them."""
        least = scores.masked_fill(scores == -torch.inf, torch.inf).amin(-1)
        spread = float((scores.amax(-1) - least).max())
        if not spread <= MOST_SPREAD:
            much = "more than a number can say" if spread != spread else f"{spread:.3g}"
            raise ModelNotSupported(
                f"{self.name}, head {head}: the scores of a query spread over {much}, and errors are exact up to "
                f"{MOST_SPREAD:,}. Trained models stay far below: the weights are damaged, or not scaled as the config says."
            )

    def check_finite(self) -> None:
        """Refuse new queries, keys or values that are nan or infinite."""
        new = self.query.shape[2]
        given = {"queries": self.query, "keys": self.key[:, :, -new:], "values": self.value[:, :, -new:]}
        if bool(torch.stack([one.isfinite().all() for one in given.values()]).all()):
            return
        what = next(name for name, one in given.items() if not bool(one.isfinite().all()))
        raise InputError(
            f"{self.name} attends with {what} that are nan or infinite: the model's weights are damaged, or too large for "
            f"{str(self.query.dtype).removeprefix('torch.')}. Copy the model again, or use a wider dtype (--dtype)."
        )

    def hidden(
        self, batch: int, rows: Tensor | slice, head: int = 0, keys: Tensor | slice | None = None
    ) -> Tensor:
        """(m, k) bool: True where the query does not see the key."""
        row, column = self._rows(rows), self._keys(keys)
        place = torch.full((1, 1), batch, device=row.device)
        return ~self.mask.seen(place, head, row[:, None], column).to(row.device)

    def output(self) -> Tensor:
        """(B, Lq, Hq, dv): the model's own attention. A query that sees nothing (padding) gets zeros.

        Fused attention where one flag describes the mask; else blocks of queries, each over the keys that some
        query of the block sees. Soft caps and sinks, which fused attention does not know, are computed in
        float32 block by block.
        """
        plain = self.mask.plain
        if plain is not None and self.bias is None and self.softcap is None and self.sink is None:
            out = scaled_dot_product_attention(
                self.query,
                self.key,
                self.value,
                scale=self.scale,
                is_causal=plain == "causal",
                enable_gqa=self.groups > 1,
            )
            return out.transpose(1, 2)
        out = self.value.new_zeros(*self.query.shape[:1], *self.query.shape[2:0:-1], self.value.shape[-1])
        shared = self.softcap is None and self.sink is None and self.bias is None
        for rows in self.blocks(1 if shared else self.heads):
            out[:, rows] = self._block(rows).transpose(1, 2)
        return out

    def blocks(self, heads: int) -> Iterator[Tensor]:
        """The queries, as many at a time as make at most BLOCK entries over this many heads."""
        size, _, length, _ = self.query.shape
        step = max(1, BLOCK // (size * heads * self.key.shape[2]))
        yield from torch.arange(length, device=self.query.device).split(step)

    def seen(self, rows: Tensor) -> Tensor:
        """(B, _, m, Lk) bool: which keys some queries see, of all texts; one head where all heads see the same."""
        return self.mask.seen(*self._grid(rows, slice(None))).to(rows.device)

    def _block(self, rows: Tensor) -> Tensor:
        # (B, Hq, m, dv), over the stretch of keys that the block sees: a window or a causal mask leaves few.
        seen = self.seen(rows)
        columns = seen.flatten(0, -2).any(0).nonzero()
        if len(columns) == 0:
            return self.value.new_zeros(*self.query.shape[:2], len(rows), self.value.shape[-1])
        stretch = slice(int(columns[0]), int(columns[-1]) + 1)
        return self.attended(rows, seen[..., stretch], stretch)

    def attended(self, rows: Tensor, allowed: Tensor, stretch: slice = slice(None)) -> Tensor:
        """(B, Hq, m, dv): attention of some queries over a stretch of the keys. `allowed` broadcasts to (B, Hq, m, k):
        bool, or added to the scores (−inf: not attended to). A query that may attend to nothing gets zeros."""
        q = self.query[:, :, rows]
        k, v = (_repeated(x[:, :, stretch], self.groups) for x in (self.key, self.value))
        extra = self._extra(*self._grid(rows, stretch))
        if allowed.dtype == torch.bool:
            some = allowed.any(-1, keepdim=True)
            if extra is not None or self.softcap is not None or self.sink is not None:
                allowed = torch.zeros_like(allowed, dtype=torch.float32).masked_fill_(~allowed, -torch.inf)
        else:
            some = (allowed > -torch.inf).any(-1, keepdim=True)
        if self.softcap is None and self.sink is None:
            if allowed.dtype != torch.bool:  # weights in halves would be off by up to 0.4 %
                q, k, v = wide(q), wide(k), wide(v)
                allowed = allowed.to(q) if extra is None else extra.to(q) + allowed.to(q)
            out = scaled_dot_product_attention(q, k, v, allowed, scale=self.scale)
            return out.to(self.value.dtype).masked_fill(~some, 0)
        s = _capped(wide(q) @ wide(k).mT * self.scale, self.softcap)
        s = (s if extra is None else s + extra.to(s)) + allowed.to(s)
        return (self.weights(s) @ wide(v)).to(self.value.dtype)

    def only(self, heads: list[int]) -> Call:
        """The same call with some of its heads, each with keys of its own."""
        if heads == list(range(self.heads)):
            return self

        def part(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[1] == 1 else x[:, heads]

        mask = self.mask
        if isinstance(mask, TensorMask):
            mask = TensorMask(mask.matrix if mask.matrix.shape[1] == 1 else mask.matrix[:, heads])
        return replace(
            self,
            query=self.query[:, heads],
            key=_repeated(self.key, self.groups)[:, heads],
            value=_repeated(self.value, self.groups)[:, heads],
            groups=1,
            mask=mask,
            bias=part(self.bias),
            sink=None if self.sink is None else self.sink[heads],
        )

    def detached(self) -> Call:
        """The same call out of the graph that it is made in."""
        names = ("query", "key", "value", "bias", "sink")
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{name: one.detach() for name, one in given.items() if one is not None})

    def block_scores(self, rows: Tensor, stretch: slice = slice(None)) -> Tensor:
        """(B, Hq, m, k), at least float32: `scores` of all texts and heads at once, hidden keys not left out."""
        size, key_heads = self.key.shape[:2]
        q = wide(self.query[:, :, rows]) * self.scale
        s = q.reshape(size, key_heads, -1, q.shape[-1]) @ wide(self.key[:, :, stretch]).mT
        s = _capped(s.view(size, self.heads, len(rows), -1), self.softcap)
        extra = self._extra(*self._grid(rows, stretch))
        return s if extra is None else s + extra.to(s)

    def attention(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (B, Hq, m, Lk) of some queries, and which keys they see (B, _, m, Lk)."""
        seen = self.seen(rows)
        return self.weights(self.block_scores(rows).masked_fill(~seen, -torch.inf)), seen

    def _grid(self, rows: Tensor, stretch: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Texts, heads, queries and keys, to broadcast to (B, Hq, m, k).
        place, head = (torch.arange(size, device=rows.device) for size in self.query.shape[:2])
        keys = torch.arange(self.key.shape[2], device=rows.device)[stretch]
        return place[:, None, None, None], head[:, None, None], rows[:, None], keys

    def weights(self, s: Tensor, head: int | None = None) -> Tensor:
        """(B, Hq, m, k), or of one head (B, 1, m, k): softmax over the keys and the sink. Rows that see nothing weigh
        nothing."""
        top = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -torch.inf)
        if self.sink is not None:
            sink = (self.sink if head is None else self.sink[head]).to(s).reshape(-1, 1, 1)
            top = torch.maximum(top, sink)
        top = top.masked_fill(top == -torch.inf, 0)
        weight = (s - top).exp()
        total = weight.sum(-1, keepdim=True)
        if self.sink is not None:
            total = total + (sink - top).exp()
        return weight / total.masked_fill(total == 0, 1)

    def _extra(self, batch: Tensor, head: Tensor | int, rows: Tensor, keys: Tensor) -> Tensor | None:
        # What is added to the scores: position bias, and whatever the mask adds to keys that are seen.
        added = self.mask.added(batch, head, rows, keys)
        if self.bias is None:
            return added
        bias = pick(self.bias, batch, head, rows, keys)
        return bias if added is None else bias + added

    def _rows(self, rows: Tensor | slice) -> Tensor:
        if isinstance(rows, slice):
            return torch.arange(self.query.shape[2], device=self.query.device)[rows]
        return rows.to(self.query.device)

    def _keys(self, keys: Tensor | slice | None) -> Tensor:
        if keys is None or isinstance(keys, slice):
            return torch.arange(self.key.shape[2], device=self.query.device)[keys or slice(None)]
        return keys.to(self.query.device)


def wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _capped(s: Tensor, cap: float | None) -> Tensor:
    return s if cap is None else cap * torch.tanh(s / cap)


def _repeated(x: Tensor, groups: int) -> Tensor:
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)
