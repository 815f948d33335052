"""The attention modules of a model, in order, found by what their code calls."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnlimit.models.see import adapters


@dataclass(frozen=True)
class LayerInfo:
    """One attention module: its number in order, its path in the model, and its shape (0: known when called)."""

    index: int
    name: str
    heads: int
    key_heads: int
    head_dim: int


def attention_layers(model: nn.Module) -> list[LayerInfo]:
    """The attention modules of a model, in the order of its modules (encoder first, then decoder)."""
    return [
        LayerInfo(index, name, *_shape(module, model))
        for index, (name, module) in enumerate(attention_modules(model))
    ]


def attention_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """(path, module) of every module that attends through transformers' interface or an adapter of ours."""
    return [
        (name or type(module).__name__, module)
        for name, module in model.named_modules()
        if _on_interface(type(module)) or adapters.handles(module)
    ]


def notes(model: nn.Module) -> tuple[str, ...]:
    """What is true of a model that works but whose layers are not all seen one by one."""
    config, modules = getattr(model, "config", None), attention_modules(model)
    seen, total = len(modules), first_count((config,), "num_hidden_layers")
    if total and any(is_cross(module, name) for name, module in modules):  # a decoder's layer attends twice
        total += 2 * first_count((config,), "decoder_layers", "num_decoder_layers")
    if not 0 < seen < total:
        return ()
    if getattr(config, "num_hidden_groups", total) < total:  # ALBERT
        return (
            f"{seen} attention modules serve all {total} layers; what is said of a layer is the mean over its uses.",
        )
    return (
        f"Only {seen} of {total} layers are softmax attention and are seen; the others (linear attention, state space, "
        "convolution or attention in blocks) run as they are, and budgets leave them so.",
    )


def model_type(model: nn.Module) -> str:
    """transformers' name of the architecture, e.g. "bert"."""
    return str(getattr(getattr(model, "config", None), "model_type", "") or type(model).__name__)


def is_cross(module: nn.Module, name: str) -> bool:
    """Whether the keys belong to another sequence than the queries. Models say so only by flag or name."""
    last = ".".join([type(module).__name__, *name.split(".")[-2:]]).lower()
    return bool(getattr(module, "is_cross_attention", False)) or any(
        word in last for word in ("cross", "encdec", "encoder_attn")
    )


def _on_interface(kind: type) -> bool:
    # A class attends through the interface if one of its own methods looks the attention function up. Whole
    # models look it up too, to check settings.
    names = [base.__name__ for base in kind.__mro__]
    if "PreTrainedModel" in names:
        return False
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for method in vars(base).values():
            code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
            if code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names:
                return True
    return False


def _shape(module: nn.Module, model: nn.Module) -> tuple[int, int, int]:
    config = getattr(module, "config", None) or getattr(model, "config", None)
    heads = first_count((module, config), "num_attention_heads", "num_heads", "n_heads")
    groups = first_count((module,), "num_key_value_groups") or 1
    widths = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "d_kv")
    dim = first_count((module, config), *widths)
    if not dim and heads:
        dim = first_count((config,), "hidden_size", "d_model") // heads
    return heads, heads // groups, dim


def first_count(owners: Sequence[Any], *names: str) -> int:
    """The first number above 0 that an owner, a module or its config, has under one of these names; 0: none."""
    found = (getattr(owner, name, None) for owner in owners for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), 0)
