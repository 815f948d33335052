"""See, or replace, every attention call of a Hugging Face model.

One mechanism serves both: inside `observe(model, handler)` each layer's queries, keys and values go to the
handler, which returns the layer's output, or None for the model's own. Nothing but the current layer is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.models.see import adapters
from attnlimit.models.see.call import Call
from attnlimit.models.see.layers import LayerInfo, attention_layers, attention_modules, is_cross, model_type
from attnlimit.models.see.load import need_transformers
from attnlimit.models.see.masks import RuleMask, TensorMask, causal, everything, lazy_mask

Handler = Callable[[Call], Tensor | None]
"""Takes a call, returns its output (B, Lq, Hq, dv), or None for the model's own."""

__all__ = ["Call", "Handler", "LayerInfo", "Observed", "attention_layers", "check_model", "observe"]

IMPLEMENTATION = "attnlimit"
"""The name that attention and mask are registered under; "sdpa", "flash" or "flex_attention" in it would make
transformers check for those backends."""

_ACTIVE: dict[int, Observed] = {}  # module id → the observation it is under


@dataclass(eq=False)
class Observed:
    """What `observe` sees: the layers, and how often each was called."""

    layers: list[LayerInfo]
    calls: list[int]
    _handler: Handler = field(repr=False, default=lambda call: None)
    _index: dict[int, int] = field(repr=False, default_factory=dict)
    _names: dict[int, str] = field(repr=False, default_factory=dict)

    def _layer(self, module: nn.Module, query: Tensor, key: Tensor) -> LayerInfo:
        if id(module) not in self._index:  # a module that attends in a way its class does not show
            self._index[id(module)] = len(self.layers)
            self.layers.append(LayerInfo(len(self.layers), self._names[id(module)], 0, 0, 0))
            self.calls.append(0)
        index = self._index[id(module)]
        shape = (query.shape[1], key.shape[1], query.shape[3])
        self.layers[index] = LayerInfo(index, self.layers[index].name, *shape)
        self.calls[index] += 1
        return self.layers[index]


@contextmanager
def observe(model: Any, handler: Handler) -> Iterator[Observed]:
    """Send every attention call of a model to `handler` while inside; the model is as it was afterwards.

    Leaving, or the first forward pass, raises ModelNotSupported if an attention layer never came by: then the
    model does not attend through transformers' attention interface, and whatever was counted would be wrong.
    """
    transformers = need_transformers()
    transformers.AttentionInterface.register(IMPLEMENTATION, attend)
    # The same name, or transformers would make no masks and padding would be attended to.
    transformers.AttentionMaskInterface.register(IMPLEMENTATION, lazy_mask)
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch module from transformers, got {type(model).__name__}.")
    modules = attention_modules(model)
    adapters.refuse(model, bool(modules))
    if any(id(module) in _ACTIVE for module in model.modules()):
        raise InputError(
            f"{type(model).__name__} is already inside observe or sampled_attention: one handler at a time. "
            "Leave the outer block first, or do both in one handler."
        )
    observed = Observed(
        layers=attention_layers(model),
        calls=[0] * len(modules),
        _handler=handler,
        _index={id(module): index for index, (_, module) in enumerate(modules)},
        _names={id(module): name or type(module).__name__ for name, module in model.named_modules()},
    )
    with ExitStack() as stack:
        _attach(stack, model, observed)
        yield observed
    missing = [layer.name for layer, count in zip(observed.layers, observed.calls, strict=True) if not count]
    if not any(observed.calls):
        raise _not_seen(model, "none of its layers")
    if missing:
        raise _not_seen(
            model, f"{len(missing)} of its {len(observed.calls)} layers, first {missing[0]}, never"
        )


def check_model(model: Any, **inputs: Any) -> float:
    """‖observed − alone‖ / ‖alone‖ of the model's first output on `inputs`, padding left out: the proof for
    architectures nobody tried.

    Raises ModelNotSupported above the square root of the dtype's precision (3e-4 in float32): then the model's
    attention is not the softmax attention that its calls describe.
    """
    with torch.no_grad():
        alone: Tensor = model(**inputs)[0]
        with observe(model, lambda call: None):
            observed: Tensor = model(**inputs)[0]
    real = inputs.get("attention_mask")
    if real is not None and real.shape == alone.shape[:2]:
        alone, observed = alone[real.bool()], observed[real.bool()]
    difference = float((observed - alone).double().norm() / alone.double().norm())
    if not difference <= torch.finfo(alone.dtype).eps ** 0.5:
        raise ModelNotSupported(
            f"{type(model).__name__} computes its attention otherwise than its calls say: with softmax attention over "
            f"the queries, keys and values it passes, its output is off by {difference:.1e}. Budgets for it would be "
            "wrong; choose another architecture, or add an adapter in attnlimit/models/see/adapters."
        )
    return difference


def _attach(stack: ExitStack, model: nn.Module, observed: Observed) -> None:
    # Each step is undone in reverse order, whatever happens inside.
    for module in list(model.modules()):
        _ACTIVE[id(module)] = observed
        stack.callback(_ACTIVE.pop, id(module), None)
    for config in _configs(model):
        before = config._attn_implementation_internal
        config._attn_implementation_internal = IMPLEMENTATION
        stack.callback(setattr, config, "_attn_implementation_internal", before)
    stack.enter_context(adapters.attached(model, attend))

    def after_first(module: nn.Module, args: Any, output: Any) -> None:
        if not any(observed.calls):
            raise _not_seen(model, "none of its layers", was_run=True)

    stack.callback(model.register_forward_hook(after_first).remove)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function registered with transformers; dropout is ignored, as in evaluation."""
    observed = _ACTIVE.get(id(module))
    # none: another model that shares this one's config object
    layer = LayerInfo(0, "", 0, 0, 0) if observed is None else observed._layer(module, query, key)
    call = _call(layer, module, (query, key, value), attention_mask, scaling, kwargs)
    if observed is not None:
        call.check_finite()
    answer = None if observed is None else observed._handler(call)
    if answer is None:
        answer = call.output()
    wanted = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    if not isinstance(answer, Tensor) or tuple(answer.shape) != wanted:
        got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise InputError(
            f"the handler's output for layer {layer.index} ({layer.name}) must have shape (B, Lq, Hq, dv) = "
            f"{wanted}, got {got}. Return None for the model's own attention."
        )
    return answer.to(value).contiguous(), None


def _call(
    layer: LayerInfo, module: nn.Module, given: tuple[Tensor, ...], mask: Any, scaling: Any, kwargs: Any
) -> Call:
    query, key, value = given
    for name in ("cache", "indices", "block_indices"):
        if kwargs.get(name) is not None:
            raise ModelNotSupported(
                f"{type(module).__name__} passes '{name}' to its attention, so that a query does not see plain "
                "softmax attention over keys in order (paged cache or learned key selection). Use plain generation "
                "or a model without key selection."
            )
    heads, key_heads = query.shape[1], key.shape[1]
    if heads % key_heads:
        raise ModelNotSupported(f"{type(module).__name__} has {heads} query heads on {key_heads} key heads.")
    if mask is None:
        mask = _without_mask(module, query, key, kwargs.get("is_causal"))
    elif isinstance(mask, Tensor):
        mask = TensorMask(mask)
    cross = is_cross(module, layer.name)
    real, own = _queries(mask, cross, query.shape[2], key.shape[2])
    return Call(
        layer=layer.index,
        name=layer.name,
        query=query,
        key=key,
        value=value,
        scale=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        groups=heads // key_heads,
        mask=mask,
        softcap=kwargs.get("softcap"),
        bias=kwargs.get("position_bias"),
        sink=kwargs.get("s_aux"),
        real=real,
        own_key=own,
    )


def _without_mask(module: nn.Module, query: Tensor, key: Tensor, is_causal: bool | None) -> RuleMask:
    # No mask at all: fused attention then goes by a flag, on the call or on the module, and so do we.
    flag = getattr(module, "is_causal", True) if is_causal is None else is_causal
    size, _, length, _ = query.shape
    rule = causal if flag and length > 1 else everything
    return RuleMask(rule, (size, 1, length, key.shape[2]), device=query.device)


def _queries(mask: Any, cross: bool, length: int, keys: int) -> tuple[Tensor | None, int | None]:
    # Which queries are real tokens, and where the first one's own key is.
    if cross:
        return None, None
    if not isinstance(mask, RuleMask):
        return None, keys - length
    own = mask.query_start - mask.key_start
    stop = mask.query_start + length
    if mask.padding is None or mask.padding.shape[1] < stop:
        return None, own
    return mask.padding[:, mask.query_start : stop], own


def _configs(model: nn.Module) -> list[Any]:
    # Every config that some module reads, parts of configs included, each once.
    found: dict[int, Any] = {}
    waiting: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(found.values())


def _not_seen(model: nn.Module, which: str, was_run: bool = False) -> ModelNotSupported:
    return ModelNotSupported(
        f"{type(model).__name__} (model type '{model_type(model)}'): {which} called the attention function inside "
        f"the block. {adapters.advice(was_run)}"
    )
