"""Tokens from wherever they are, as checked blocks of keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError
from attnlimit.files.arrays import RowFile, open_rows
from attnlimit.inputs import as_points, from_numpy, widened
from attnlimit.measures.empirical import Empirical

Source: TypeAlias = Tensor | Empirical | RowFile | Iterable[object]
Tokens: TypeAlias = np.ndarray | str | Path | Source
"""A matrix, a measure, a .npy or .safetensors file, or an iterable of blocks of keys, or of (keys, values)."""


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
