"""Attention over keys that need not fit in memory, and over all prefixes of them in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnlimit.attention.head import Head, LinearHead
from attnlimit.errors import InputError
from attnlimit.files.arrays import RowFile, open_rows
from attnlimit.inputs import Array, as_count, as_counts, as_points, as_readable, from_numpy, widened
from attnlimit.measures.empirical import Empirical
from attnlimit.numerics.softmax import Partial, attend, merge

Source: TypeAlias = Tensor | Empirical | RowFile | Iterable[object]
Tokens: TypeAlias = np.ndarray | str | Path | Source
"""A matrix, a measure, a .npy or .safetensors file, or an iterable of blocks of keys, or of (keys, values)."""


def stream(head: Head, tokens: Tokens, queries: Array, *, block: int | None = None) -> Tensor:
    """head(all tokens)(queries), one block of keys at a time, merged exactly by running log-sum-exp:

        mean = (e^{lse₁} mean₁ + e^{lse₂} mean₂) / (e^{lse₁} + e^{lse₂}) for two blocks.

    `tokens` is a matrix, an Empirical, a .npy or .safetensors file, or an iterable of blocks: (n, d) matrices of
    keys, or pairs (keys, values). Memory is one block and one output, however many keys there are; `block` is
    the largest number of keys taken at once (unless given, 2²³ numbers: 32 MiB in float32).

    >>> import torch
    >>> pieces = (torch.tensor([[y]], dtype=torch.float64) for y in (-1.0, 1.0))
    >>> stream(Head([[1.0]]), pieces, queries=[[0.0], [20.0]])
    tensor([[0.],
            [1.]], dtype=torch.float64)
    """
    x = _softmax(head).checked(queries)
    state: Partial | None = None
    for _, running in _running(head, blocks(head, opened(tokens), _block(head, block)), x):
        state = running
    if state is None:
        raise InputError("tokens are empty: attention needs at least one key.")
    return _outputs(head, state.mean, x)


def prefixes(
    head: Head, tokens: Tokens, n: int | Array, queries: Array | None = None, *, block: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """(n, head(first n tokens)(queries)) for every n asked for, increasing, in one pass over the keys.

    Without `queries` it is self-attention: at n the queries are the first n tokens (which must be in memory).
    The cost is that of the largest n alone, and nothing is read or computed before it is asked for.

    >>> import torch
    >>> tokens = torch.tensor([[1.0], [3.0], [8.0]], dtype=torch.float64)
    >>> [(n, y.item()) for n, y in prefixes(Head([[0.0]]), tokens, n=[1, 2, 3], queries=[0.0])]
    [(1, 1.0), (2, 2.0), (3, 4.0)]
    """
    sizes, size, source = sorted(set(as_counts(n))), _block(head, block), opened(tokens)
    if isinstance(source, Tensor | Empirical | RowFile) and len(source) < sizes[-1]:
        raise _too_few(sizes[-1], len(source))
    if queries is not None:
        return _curve(head, blocks(_softmax(head), source, size), sizes, head.checked(queries))
    if not isinstance(source, Tensor | Empirical):
        raise InputError(
            "Self-attention over prefixes needs the tokens in memory: pass a tensor, or give queries."
        )
    keys, values = next(blocks(_softmax(head), source, sizes[-1]))
    head.checked(keys[:1])  # as queries they need the right dimension; the numbers have been checked as keys
    return _curve(head, [(keys, values)], sizes, keys, own=True)


def _curve(
    head: Head, pieces: Iterable[tuple[Tensor, Tensor]], sizes: list[int], x: Tensor, *, own: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """One pass with all queries. `own`: they are the tokens, and at n only the first n of them are wanted.

    Each of them meets each key once. Growing the queries along with the keys would meet no fewer pairs,
    and shorter calls of the fused kernel are slower.
    """
    seen = 0
    for seen, state in _running(head, cut(pieces, sizes), x):
        if seen in sizes:
            wanted = slice(seen) if own else slice(None)
            yield seen, _outputs(head, state.mean[..., wanted, :], x[wanted])
        if seen == sizes[-1]:
            return
    raise _too_few(sizes[-1], seen)


def _running(head: Head, pieces: Iterable[tuple[Tensor, Tensor]], x: Tensor) -> Iterator[tuple[int, Partial]]:
    """After each block, the number of tokens so far and attention over them."""
    q = head.query(x)
    q = q.reshape(*head.heads, -1, q.shape[-1])
    state: Partial | None = None
    seen = 0
    for tokens, values in pieces:
        part = attend(q, *_projected(head, tokens, values))
        state = part if state is None else merge(state, part)
        seen += len(tokens)
        yield seen, state


def _projected(head: Head, tokens: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """b_v goes along with V, as weights sum to one."""
    values = values.expand(*head.heads, *values.shape)
    return head.keys(tokens), head.read(values) if head.reads_first else values


def _outputs(head: Head, mean: Tensor, x: Tensor) -> Tensor:
    mean = mean.reshape(*head.heads, *x.shape[:-1], mean.shape[-1])
    return mean if head.reads_first else head.read(mean)


def _block(head: Head, block: int | None) -> int:
    """Large enough that the merges cost nothing, small beside the rest of a process."""
    return max(1, 2**23 // head.key_dim) if block is None else as_count(block, "block")


def _softmax(head: Head) -> Head:
    if isinstance(head, LinearHead):
        raise InputError(
            "Streaming is for softmax heads, got linear attention: that needs only the tokens' second moment, "
            "use head(Empirical(tokens))."
        )
    return head


def _too_few(asked: int, there: int) -> InputError:
    return InputError(f"n = {asked} was asked for, but there are only {there} tokens.")


# --- tokens in blocks -------------------------------------------------------------------------------


def opened(tokens: object) -> Source:
    """The tokens with files opened (nothing is read yet), or an error when they cannot be streamed."""
    if isinstance(tokens, str | Path):
        return open_rows(tokens)
    if isinstance(tokens, np.ndarray):
        tokens = from_numpy(tokens, "tokens")
    if isinstance(tokens, Tensor) and tokens.ndim != 2:
        raise InputError(f"tokens must be an (n, d) matrix, got shape {tuple(tokens.shape)}.")
    if isinstance(tokens, Empirical) and tokens.weights is not None:
        raise InputError("Streaming takes equally weighted tokens; use head(measure) for weighted ones.")
    if isinstance(tokens, Tensor | Empirical | RowFile):
        return tokens
    # A tuple is most likely (keys, values), which would be taken for two blocks of keys.
    if isinstance(tokens, Iterable) and not isinstance(tokens, tuple):
        return tokens
    raise InputError(
        "tokens must be a matrix, an Empirical, a file or an iterable of blocks, got "
        f"{type(tokens).__name__}: keys with their values are Empirical(keys, values)."
    )


def blocks(head: Head, tokens: Source, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(keys, values) of at most `size` tokens, each checked against the head when its turn comes."""
    width = None if head.factors.V is None else head.factors.V.shape[-1]
    for item in _items(tokens, size):
        pair = item if isinstance(item, tuple) and len(item) == 2 else (item, item)
        _check_pair(*pair)
        shared = pair[0] is pair[1]
        keys, values = (torch.as_tensor(one) for one in pair)
        width = values.shape[1] if width is None else width
        for k, v in zip(keys.split(size), values.split(size), strict=True):
            if len(k) == 0:
                continue
            _check_points(k, head.key_dim, "tokens", head.factors.right)
            if not shared or width != head.key_dim:
                _check_points(v, width, "values", head.factors.right)
            yield widened(k), widened(v)


def cut(pieces: Iterable[tuple[Tensor, Tensor]], sizes: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same blocks, cut so that every size falls on the end of one."""
    seen = 0
    for keys, values in pieces:
        inside = [size - seen for size in sizes if seen < size < seen + len(keys)]
        for start, stop in pairwise([0, *inside, len(keys)]):
            yield keys[start:stop], values[start:stop]
        seen += len(keys)


def _items(tokens: Source, size: int) -> Iterable[object]:
    if isinstance(tokens, Tensor):
        return [tokens]
    if isinstance(tokens, Empirical):
        return [(tokens.tokens, tokens.values)]
    return tokens.blocks(size) if isinstance(tokens, RowFile) else tokens


def _check_pair(keys: object, values: object) -> None:
    rows = []
    for one in (keys, values):
        as_readable(one, "A block")
        if not isinstance(one, Tensor | np.ndarray) or one.ndim != 2:
            got = f"shape {tuple(one.shape)}" if isinstance(one, Tensor | np.ndarray) else type(one).__name__
            raise InputError(
                f"A block must be an (n, d) matrix of keys, or a pair (keys, values), got {got}."
            )
        rows.append(one.shape[0])
    if rows[0] != rows[1]:
        raise InputError(
            f"A block must have one value a key, got {rows[0]} keys and {rows[1]} values: pair them row by row."
        )


def _check_points(points: Tensor, dim: int, name: str, like: Tensor) -> None:
    """What as_points checks, in one pass over the data and without temporaries as long as all is well."""
    fine = points.dtype == like.dtype and points.device == like.device
    fine = fine and points.numel() > 0 and points.shape[1] == dim
    fine = fine and bool(torch.stack(points.aminmax()).isfinite().all())
    as_points(points[:1] if fine else points, dim, name, like=like)
