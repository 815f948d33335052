"""Caches that grow in place.

transformers appends the keys and values of a new token by copying all there are, which with many of them costs more than attending to a
few. Here they go into memory with room to spare, of which a layer's keys are a view: tensors as before, of the same numbers. What was given
away is never written to: a cache that was cropped, reordered or copied gets memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

LEAST, ROOM = 1024, 4
"""New memory has room for so many keys more, or for one in `ROOM` of those there are."""
_known: WeakKeyDictionary[Any, dict[str, tuple[Tensor, Tensor]]] = WeakKeyDictionary()
"""Of each layer of a cache: the memory of its keys and of its values, and the view that was given away last."""
_original: list[Any] = []
"""What `_update` stands in for, once for each that is inside."""


@contextmanager
def growing_caches() -> Iterator[None]:
    """Inside, transformers' usual caches grow in place; those of other kinds (sliding, static, quantised) do as they did."""
    usual: Any = _usual()
    _original.append(_original[0] if _original else usual.update)
    usual.update = _update
    try:
        yield
    finally:
        original = _original.pop()
        if not _original:
            usual.update = original
            _known.clear()


def _usual() -> type[Any]:
    from transformers.cache_utils import DynamicLayer

    return DynamicLayer


def _update(layer: Any, keys: Tensor, values: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
    given = {"keys": keys, "values": values}
    if type(layer) is not _usual() or not all(
        _fits(getattr(layer, name, None), one) for name, one in given.items()
    ):
        found: tuple[Tensor, Tensor] = _original[0](layer, keys, values, *rest, **named)
        return found
    known = _known.setdefault(layer, {})
    for name, new in given.items():
        old, (memory, view) = getattr(layer, name), known.get(name, (None, None))
        known[name] = _appended(old, new, memory if view is old else None)
        setattr(layer, name, known[name][1])
    return known["keys"][1], known["values"][1]


def _fits(old: Any, new: Tensor) -> bool:
    """Whether there are keys to append to, and nobody asks for gradients."""
    return (
        isinstance(old, Tensor)
        and old.ndim == new.ndim == 4
        and old.shape[2] > 0
        and (old.dtype, old.device) == (new.dtype, new.device)
        and (*old.shape[:2], old.shape[3]) == (*new.shape[:2], new.shape[3])
        and not (torch.is_grad_enabled() and (old.requires_grad or new.requires_grad))
    )


def _appended(old: Tensor, new: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
    """The memory, new where there was none or too little, and the view of both."""
    before, after = old.shape[2], old.shape[2] + new.shape[2]
    closed = memory is not None and memory.is_inference() and not torch.is_inference_mode_enabled()
    if memory is None or closed or memory.shape[2] < after:
        room = after + max(LEAST, after // ROOM)
        memory = old.new_empty(*old.shape[:2], room, old.shape[3])
        memory[:, :, :before] = old
    memory[:, :, before:after] = new
    return memory, memory[:, :, :after]
