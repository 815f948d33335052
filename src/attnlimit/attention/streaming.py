"""Attention over keys that need not fit in memory, and over all prefixes of them in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError
from attnlimit.measures.empirical import Empirical
from attnlimit.numerics.arrayfile import open_rows
from attnlimit.numerics.inputs import Array, as_count, as_counts, as_points
from attnlimit.numerics.softmax import Partial, attend, merge

Block: TypeAlias = tuple[Tensor, Tensor]
Tokens: TypeAlias = Tensor | Empirical | str | Path | Iterable[Tensor] | Iterable[Block]
"""A tensor, a measure, a .npy or .safetensors file, or an iterable of blocks of keys, or of (keys, values)."""


def stream(head: Head, tokens: Tokens, queries: Array, *, block: int = 2**15) -> Tensor:
    """head(all tokens)(queries), one block of keys at a time, merged exactly by running log-sum-exp.

    Memory is one block of keys and one output, however many keys there are.
    """
    x = head.checked(queries)
    state: Partial | None = None
    for _, running in _running(head, _blocks(tokens, as_count(block, "block")), x):
        state = running
    if state is None:
        raise InputError("tokens are empty: attention needs at least one key.")
    return _outputs(head, state, x)


def prefixes(
    head: Head, tokens: Tokens, n: int | Sequence[int], queries: Array | None = None, *, block: int = 2**15
) -> Iterator[tuple[int, Tensor]]:
    """(n, head(first n tokens)(queries)) for every n asked for, increasing, in one pass over the keys.

    Without `queries` it is self-attention: at n the queries are the first n tokens (which must be in memory).
    The cost is that of the largest n alone.
    """
    sizes = sorted(set(as_counts(n)))
    own = queries is None
    if queries is None:
        tokens = tokens.tokens if isinstance(tokens, Empirical) else tokens
        if not isinstance(tokens, Tensor):
            raise InputError(
                "Self-attention over prefixes needs the tokens in memory: pass a tensor, or give queries."
            )
        queries = tokens[: sizes[-1]]
    x = head.checked(queries)
    seen = 0
    for seen, state in _running(head, _cut(_blocks(tokens, as_count(block, "block")), sizes), x):
        if seen in sizes:
            here = Partial(state.mean[..., :seen, :], state.lse[..., :seen]) if own else state
            yield seen, _outputs(head, here, x[:seen] if own else x)
        if seen == sizes[-1]:
            return
    raise InputError(f"n = {sizes[-1]} was asked for, but there are only {seen} tokens.")


def _running(head: Head, blocks: Iterable[Block], x: Tensor) -> Iterator[tuple[int, Partial]]:
    q = head.query(x)
    q = q.reshape(*head.heads, -1, q.shape[-1])
    state: Partial | None = None
    seen = 0
    for tokens, values in blocks:
        tokens = as_points(tokens, head.key_dim, "tokens", like=x)
        part = attend(q, head.keys(tokens), values.expand(*head.heads, *values.shape))
        state = part if state is None else merge(state, part)
        seen += len(tokens)
        yield seen, state


def _outputs(head: Head, state: Partial, x: Tensor) -> Tensor:
    return head.read(state.mean.reshape(*head.heads, *x.shape[:-1], state.mean.shape[-1]))


def _blocks(tokens: Tokens, size: int) -> Iterator[Block]:
    if isinstance(tokens, str | Path):
        yield from ((rows, rows) for rows in open_rows(tokens).blocks(size))
    elif isinstance(tokens, Empirical):
        if tokens.weights is not None:
            raise InputError("Streaming takes equally weighted tokens; use head(measure) for weighted ones.")
        yield from zip(tokens.tokens.split(size), tokens.values.split(size), strict=True)
    elif isinstance(tokens, Tensor):
        yield from ((rows, rows) for rows in tokens.split(size))
    else:
        for item in tokens:
            keys, values = item if isinstance(item, tuple) else (item, item)
            if keys.ndim != 2 or len(keys) != len(values):
                raise InputError(
                    f"A block must be (n, d) keys, with as many values, got {tuple(keys.shape)} and {tuple(values.shape)}."
                )
            yield from zip(keys.split(size), values.split(size), strict=True)


def _cut(blocks: Iterable[Block], sizes: Sequence[int]) -> Iterator[Block]:
    """The same blocks, cut so that every size falls on the end of one."""
    seen = 0
    for keys, values in blocks:
        inside = [size - seen for size in sizes if seen < size < seen + len(keys)]
        bounds = [0, *inside, len(keys)]
        for start, stop in pairwise(bounds):
            yield keys[start:stop], values[start:stop]
        seen += len(keys)
