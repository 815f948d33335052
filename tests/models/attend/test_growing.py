"""Caches that grow in place hold what transformers' own hold, and what they gave away stays as it was."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers.cache_utils import DynamicCache, DynamicLayer  # noqa: E402

from attnlimit.models.attend import growing  # noqa: E402
from attnlimit.models.attend.decoding import by_pair  # noqa: E402
from attnlimit.models.attend.growing import growing_caches  # noqa: E402

ORIGINAL = DynamicLayer.update


def states(seed: int, length: int = 1, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(2, batch, 3, length, 4, generator=torch.Generator().manual_seed(seed)))  # type: ignore[return-value]


def cropped(cache: Any, own: Any) -> None:
    for layer in (cache.layers[0], own.layers[0]):
        layer.keys, layer.values = layer.keys[..., :-2, :], layer.values[..., :-2, :]


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "nothing": lambda cache, own: None,
    "cropped": cropped,
    "reordered": lambda cache, own: (
        [one.reorder_cache(torch.tensor([1, 0])) for one in (cache, own)] and None
    ),
    "batches": lambda cache, own: [one.batch_repeat_interleave(2) for one in (cache, own)] and None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_as_transformers_own(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every step, through new memory (room for 4 more), and all that was given away before is as it was."""
    monkeypatch.setattr(growing, "LEAST", 4)
    cache, own, given = DynamicCache(), DynamicCache(), []
    for step in range(20):
        if step == 9:
            CHANGES[change](cache, own)
        batch = 4 if change == "batches" and step >= 9 else 2
        new = states(step, 5 if step == 0 else 1, batch)
        expected = ORIGINAL(own.layers[0], *new) if own.layers else own.update(*new, 0)
        with growing_caches():
            found = cache.update(*new, 0)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
            given.append((one, other.clone()))
    assert all(torch.equal(one, other) for one, other in given)
    assert cache.get_seq_length() == own.get_seq_length()


def test_memory_is_kept_from_step_to_step_and_by_no_two() -> None:
    cache = DynamicCache()
    with growing_caches():
        for step in range(4):
            keys, _ = cache.update(*states(step), 0)
        place = keys.data_ptr()
        other, deep = copy.copy(cache.layers[0]), copy.deepcopy(cache.layers[0])
        one = cache.update(*states(7), 0)[0]
        assert one.data_ptr() == place
        for each in (other, deep):
            two = each.update(*states(8))[0]
            assert two.data_ptr() != place
            assert torch.equal(two[:, :, :4], one[:, :, :4])
        assert torch.equal(one[:, :, 4:], states(7)[0])
        layer = cache.layers[0]
        assert layer in growing._known
        del cache, layer, other, deep, each
        gc.collect()
        assert not len(growing._known)


def test_only_inside_and_whoever_leaves_first() -> None:
    first, second = growing_caches(), growing_caches()
    first.__enter__()
    second.__enter__()
    assert DynamicLayer.update is not ORIGINAL
    first.__exit__(None, None, None)
    assert DynamicLayer.update is not ORIGINAL
    second.__exit__(None, None, None)
    assert DynamicLayer.update is ORIGINAL
    assert not growing._original


def test_what_is_left_to_transformers() -> None:
    """Gradients, other layers, other numbers; and memory that was made where no others may write."""

    class Other(DynamicLayer):
        pass

    with growing_caches():
        for layer, make in (
            (Other(), states),
            (DynamicLayer(), lambda seed: tuple(one.requires_grad_() for one in states(seed))),
        ):
            for step in range(3):
                layer.update(*make(step))
            assert layer not in growing._known
        mixed, closed = DynamicLayer(), DynamicLayer()
        mixed.update(*states(0))
        assert mixed.update(*(one.double() for one in states(1)))[0].dtype == torch.float64
        assert mixed not in growing._known
        with torch.inference_mode():
            for step in range(3):
                closed.update(*states(step))
        with torch.no_grad():
            keys = closed.update(*states(3))[0]
        assert torch.equal(keys, torch.cat([states(step)[0] for step in range(4)], 2))
        assert closed.update(*states(4))[0].data_ptr() == keys.data_ptr()


def test_rows_between_heads_come_along() -> None:
    memory = torch.arange(2 * 3 * 10 * 4.0).view(2, 3, 10, 4)
    view = memory[:, :, :7]
    flat = by_pair(view)
    assert flat.shape == (6, 10, 4)
    assert flat.data_ptr() == memory.data_ptr()
    assert torch.equal(flat[:, :7], view.flatten(0, 1))
    for other in (
        memory[:, :, 3:],
        memory[:, :, :, :2],
        memory[:, :2],
        memory.transpose(1, 2),
        memory[1:, 2:],
        memory[:1, 1:2, 8:],
    ):
        assert torch.equal(by_pair(other)[:, : other.shape[2]], other.flatten(0, 1))
