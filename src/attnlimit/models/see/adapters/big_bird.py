"""BigBird with full attention: q, k and v from its own projections, as its own forward makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from attnlimit.errors import ModelNotSupported


def handles(module: nn.Module) -> bool:
    """Whether this is BigBird's full attention."""
    return type(module).__name__ == "BigBirdSelfAttention"


def refuse(model: nn.Module) -> None:
    """BigBird's block-sparse attention draws blocks of keys at random: no softmax over the keys."""
    if any(type(module).__name__ == "BigBirdBlockSparseAttention" for module in model.modules()):
        raise ModelNotSupported(
            f"{type(model).__name__} runs with attention_type='block_sparse', which attends to random blocks of keys. "
            "Load it with full attention: attnlimit.models.see.load does so, or call "
            "set_attention_type('original_full') on its BigBirdModel."
        )


def forward(module: Any, attend: Callable[..., Any]) -> Callable[..., tuple[Tensor, None]]:
    """The module's forward, attending through `attend`."""

    def split(states: Tensor) -> Tensor:
        return states.view(*states.shape[:-1], -1, module.attention_head_size).transpose(1, 2)

    def full_attention(
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        cross = encoder_hidden_states is not None
        if cross and past_key_values is not None and past_key_values.get_seq_length(module.layer_idx) > 0:
            layer = past_key_values.layers[module.layer_idx]
            key, value = layer.keys, layer.values
        else:
            source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
            key, value = split(module.key(source)), split(module.value(source))
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, module.layer_idx)
        query = split(module.query(hidden_states))
        mask = encoder_attention_mask if cross else attention_mask
        # older transformers add zeros where nothing is hidden
        if isinstance(mask, Tensor) and mask.is_floating_point() and not bool(mask.any()):
            mask = None
        # A missing mask hides nothing here: BigBird has no causal flag to fall back on.
        out, _ = attend(module, query, key, value, mask, is_causal=False)
        return out.reshape(*hidden_states.shape[:-1], -1), None

    return full_attention
