"""Attention over keys that need not fit in memory, and over all prefixes of them in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from attnlimit.attention.blocks import Tokens, blocks, cut, opened
from attnlimit.attention.head import Head
from attnlimit.attention.linear import LinearHead
from attnlimit.errors import InputError
from attnlimit.files.arrays import RowFile
from attnlimit.inputs import Array, as_count, as_counts
from attnlimit.measures.empirical import Empirical
from attnlimit.numerics.softmax import Partial, attend, merge


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
