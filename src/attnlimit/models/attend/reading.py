"""Which keys queries read, from their scores: what they keep, and n drawn of the rest.

Scores of keys that are not read become −∞, and those of drawn ones grow by log c, c the keys that each stands for: softmax
does the rest. Compiled where numba is there, a row of scores stays in the cache from the first look at it to the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs.by_query import TOPS
from attnlimit.models.attend.draws import first_of_order
from attnlimit.numerics.compiled import has_numba, run_compiled


def read_keys(
    scores: Float[Tensor, "b h m keys"],
    placed: Bool[Tensor, "_ _ _ keys"],
    top: Int[Tensor, "_ h _ 1"],
    n: Int[Tensor, "_ h _ 1"],
    order: Int[Tensor, "b h 1 keys"],
    start: Float[Tensor, "b h m 1"] | None,
    rest: Bool[Tensor, "h 1 1"],
    group: int = 1,
) -> tuple[Float[Tensor, "b h m keys"], Int[Tensor, "b h m"]]:
    """The scores as they are to be read (the given ones are written over), and how many keys that are. Scores of hidden keys
    are −∞, `placed` ones are kept beside the `top` of largest score, and heads of a group keep and draw together, as the
    first of them has it. `rest` says which heads' drawn keys stand for all the rest."""
    batch, heads, m, keys = scores.shape
    if not (has_numba() and scores.device.type == "cpu" and scores.dtype == torch.float32):
        return _read_plainly(scores, placed, top, n, order, start, rest, group)
    shape = (batch * heads // group, group, m)
    rows = scores.contiguous().view(*shape, keys)
    distinct = torch.zeros(shape[0], m, dtype=torch.int64)
    first = torch.zeros(1, 1, 1, 1) if start is None else start

    def by_group(one: Tensor) -> Tensor:
        """Of the first head of each."""
        return one.expand(batch, heads, m, 1)[:, ::group].reshape(-1, m).contiguous()

    given = (
        placed.expand(batch, heads, m, keys).reshape(*shape, keys),
        top.expand(batch, heads, m, 1).reshape(shape).contiguous(),
        by_group(n),
        order[:, ::group, 0].reshape(-1, keys).contiguous(),
        by_group(first),
        by_group(rest),
    )
    run_compiled(_read, shape[0] * m, rows, *given, distinct)
    return rows.view(scores.shape), distinct[:, None].expand(shape).reshape(batch, heads, m)


def _read_plainly(
    scores: Tensor,
    placed: Tensor,
    top: Tensor,
    n: Tensor,
    order: Tensor,
    start: Tensor | None,
    rest: Tensor,
    group: int,
) -> tuple[Tensor, Tensor]:
    seen = scores > -torch.inf
    best = scores.topk(min(int(top.max()), scores.shape[-1]), dim=-1).indices
    among = (torch.arange(best.shape[-1], device=best.device) < top).expand_as(best)
    kept = (placed | torch.zeros_like(seen).scatter(-1, best, among)) & seen

    def shared(one: Tensor) -> Tensor:
        wide = one.expand(*scores.shape[:3], one.shape[-1])
        return wide[:, ::group].repeat_interleave(group, 1) if group > 1 else wide

    if group > 1:
        parts = kept.unflatten(1, (-1, group))
        kept = parts.any(2, keepdim=True).expand_as(parts).flatten(1, 2)
    left = (seen & ~kept).sum(-1, keepdim=True)
    drawn = torch.minimum(left, shared(n))
    taken = first_of_order(seen & ~kept, shared(order), shared(n), None if start is None else shared(start))
    stands_for = (left / drawn.clamp_min(1)).log().where(rest, 0.0).to(scores)
    read = torch.where(taken, scores + stands_for, scores).masked_fill(~(kept | taken), -torch.inf)
    return read, kept.sum(-1) + drawn[..., 0]


def _read(
    start: int,
    stop: int,
    scores: Any,
    placed: Any,
    top: Any,
    n: Any,
    order: Any,
    first: Any,
    rest: Any,
    distinct: Any,
) -> None:
    group, m, keys = scores.shape[1], scores.shape[2], scores.shape[3]
    kept = np.zeros(keys, np.bool_)
    buffer = np.empty(keys, np.float32)
    for place in range(start, stop):
        g, i = place // m, place % m
        kept[:] = False
        for h in range(group):
            row, wanted = scores[g, h, i], min(top[g, h, i], keys)
            for j in range(keys):
                kept[j] |= placed[g, h, i, j] and row[j] > -np.inf
            if wanted > 0:
                seen = 0
                for j in range(keys):
                    if row[j] > -np.inf:
                        buffer[seen] = row[j]
                        seen += 1
                if wanted >= seen:
                    for j in range(keys):
                        kept[j] |= row[j] > -np.inf
                else:
                    least = np.partition(buffer[:seen], seen - wanted)[seen - wanted]
                    above = 0
                    for j in range(keys):
                        if row[j] > least:
                            kept[j] = True
                            above += 1
                    for j in range(keys):  # as many of those that are equal as there is room for
                        if above == wanted:
                            break
                        if row[j] == least:
                            kept[j] = True
                            above += 1
        row, left, count = scores[g, 0, i], 0, 0
        for j in range(keys):
            if kept[j]:
                count += 1
            elif row[j] > -np.inf:
                left += 1
        drawn = min(left, n[g, i])
        distinct[g, i] = count + drawn
        passed = min(int(np.float32(first[g, i]) * np.float32(left)), left - 1)
        added = np.float32(np.log(left / drawn)) if rest[g, i] and drawn > 0 else np.float32(0.0)
        number = 0
        for k in range(keys):
            j = order[g, k]
            if kept[j] or row[j] == -np.inf:
                continue
            turn = number - passed
            if turn < 0:
                turn += left
            number += 1
            for h in range(group):
                scores[g, h, i, j] = scores[g, h, i, j] + added if turn < drawn else -np.inf


def rest_sums(
    scores: Float[Tensor, "b h m keys"], free: Bool[Tensor, "b h m keys"], part: Float[Tensor, "b h m keys"]
) -> tuple[Float[Tensor, "b h m tops"], ...]:
    """Number, Σ part and Σ part² over the `free` keys without the top 0, 4, 8, … of `TOPS`: added up from the lightest on, so
    that no digits are lost."""
    tops = torch.tensor(TOPS, device=scores.device)
    if has_numba() and scores.device.type == "cpu" and scores.dtype == torch.float32:
        sums = torch.zeros(*scores.shape[:3], 3, len(TOPS), dtype=torch.float64)
        rows = [one.expand_as(scores).contiguous().flatten(0, 2) for one in (scores, free, part)]
        run_compiled(_sums, len(rows[0]), *rows, tops, sums.view(-1, 3, len(TOPS)))
        return tuple(sums.float().unbind(-2))
    best = scores.topk(min(TOPS[-1], scores.shape[-1]), dim=-1).indices
    beyond, tops = free.scatter(-1, best, False), tops.clamp_max(best.shape[-1])

    def left(one: Tensor) -> Tensor:
        some = (one * free).gather(-1, best)
        below = (one * beyond).sum(-1, keepdim=True)
        return torch.cat([below + some.flip(-1).cumsum(-1).flip(-1), below], -1)[..., tops]

    return left(torch.ones_like(part)), left(part), left(part.square())


def _sums(start: int, stop: int, scores: Any, free: Any, part: Any, tops: Any, out: Any) -> None:
    keys, most = scores.shape[1], tops[-1]
    buffer, places, inside = np.empty(keys, np.float32), np.empty(most, np.int64), np.zeros(keys, np.bool_)
    for i in range(start, stop):
        row, seen, size, least = scores[i], 0, 0, np.float32(-np.inf)
        for j in range(keys):
            if row[j] > -np.inf:
                buffer[seen] = row[j]
                seen += 1
        if seen > most:
            least = np.partition(buffer[:seen], seen - most)[seen - most]
        inside[:] = False
        for equal in range(2):  # above the least, then as many of those that are equal as there is room for
            for j in range(keys):
                if size < most and row[j] > -np.inf and (row[j] == least if equal else row[j] > least):
                    places[size] = j
                    inside[j] = True
                    size += 1
        number, total, square = 0.0, 0.0, 0.0
        for j in range(keys):
            if free[i, j] and not inside[j]:
                number += 1.0
                total += part[i, j]
                square += part[i, j] * part[i, j]
        for k in range(size):
            buffer[k] = row[places[k]]
        ranked, next_top = np.argsort(buffer[:size]), tops.shape[0] - 1
        for k in range(size + 1):
            while next_top >= 0 and tops[next_top] >= size - k:
                out[i, 0, next_top] = number
                out[i, 1, next_top] = total
                out[i, 2, next_top] = square
                next_top -= 1
            if k < size:
                j = places[ranked[k]]
                if free[i, j]:
                    number += 1.0
                    total += part[i, j]
                    square += part[i, j] * part[i, j]
