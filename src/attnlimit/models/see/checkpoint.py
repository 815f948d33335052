"""That a checkpoint is whole: its config can be, its weights are those that the config asks for, and its tokens are known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnlimit.errors import InputError

MOST_LAYERS = 1_000
LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
HEADS = ("num_attention_heads", "num_key_value_heads")
NUMBERED = re.compile(r"(.*?(?:layers?|h|blocks?))\.(\d+)\.")
"""Of the name of a weight: the stack that it is in, and the number of its layer."""
COPY = "Copy the whole model folder again."
SAMPLE = 64


def check_config(config: Any, name: str) -> None:
    """Refuse a number of layers or heads that no model has, before they are built."""
    for part in (config, getattr(config, "text_config", None)):
        for field in (*LAYERS, *HEADS):
            layers, least = getattr(part, field, None), int(field in (LAYERS[0], *HEADS))
            if isinstance(layers, int) and not least <= layers <= MOST_LAYERS:
                raise InputError(
                    f"The config.json of '{name}' says {field} = {layers:,}, and models have {least} to {MOST_LAYERS:,}: it is "
                    f"damaged. {COPY}"
                )


def check_weights(model: Any, report: Mapping[str, Any], name: str, kind: str) -> None:
    """Refuse what transformers would fill with random numbers or leave out, by its loading report; only an unused pooler may
    be random."""
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing and (kind == "encoder" or any(map(NUMBERED.match, missing))):
        raise InputError(
            f"'{name}' has no weights for {missing[0]} ({len(missing)} missing), which its config.json asks for: they would "
            f"be random. {COPY}"
        )
    if missing:
        raise InputError(
            f"'{name}' has no weights for {missing[0]} ({len(missing)} missing), which a {kind} needs: they would "
            "be random. Load it as task='encoder', or use a checkpoint trained for this task."
        )
    if others := sorted(report["mismatched_keys"]):
        key, there, wanted = others[0]
        raise InputError(
            f"'{name}' cannot be loaded: its config.json does not match its weights: {key} is of shape {tuple(there)}, not "
            f"{tuple(wanted)}. {COPY}"
        )
    if more := _layers_left_out(model, report["unexpected_keys"]):
        raise InputError(
            f"'{name}' has weights for {more[0]}, a layer beyond those of its config.json ({len(more)} weights): part of the "
            f"model would be left out. {COPY}"
        )


def _layers_left_out(model: Any, unexpected: Any) -> list[str]:
    """Weights of the model's own stacks with a higher number. Others are of heads and towers that were not asked for, or
    predict further tokens."""
    if any(value and re.search("nextn|mtp", field) for field, value in vars(model.config).items()):
        return []
    prefix, last = f"{model.base_model_prefix}.", dict[str, int]()
    for key in model.state_dict():
        if found := NUMBERED.match(key.removeprefix(prefix)):
            last[found[1]] = max(last.get(found[1], 0), int(found[2]))
    places = {key: NUMBERED.match(key.removeprefix(prefix)) for key in unexpected}
    return sorted(key for key, found in places.items() if found and int(found[2]) > last.get(found[1], 10**9))


def guard_tokens(model: Any, name: str) -> None:
    """Let the model refuse tokens that it has no embedding for, wherever they come from."""
    with suppress(NotImplementedError):  # models that do not say where their embeddings are
        embedding = model.get_input_embeddings()
        if isinstance(embedding, nn.Embedding):
            embedding.register_forward_pre_hook(partial(_known, name))


def _known(name: str, embedding: nn.Embedding, args: tuple[Any, ...]) -> None:
    most = int(args[0].max()) if args and isinstance(args[0], Tensor) and args[0].numel() else 0
    if most >= embedding.num_embeddings:
        raise InputError(
            f"Token {most} is none of the {embedding.num_embeddings:,} that '{name}' knows: its tokenizer is of another model. "
            "Copy the tokenizer's files (tokenizer.json, tokenizer_config.json) that belong to it."
        )


def digest(model: nn.Module) -> str:
    """What a model's weights are known by: the dtype, and SHA-256 of names, shapes and the first numbers of each. Nothing where some
    are on disk. A pooler may be random, and is left out."""
    total, dtype = hashlib.sha256(), ""
    for name, one in model.named_parameters():
        if one.is_meta:
            return ""
        if "pooler" not in name:
            dtype = dtype or str(one.dtype).removeprefix("torch.")
            total.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
            some = one.detach().reshape(-1)[:SAMPLE].cpu()
            total.update(some.view(torch.uint8).numpy().tobytes())
    return f"{dtype} {total.hexdigest()[:16]}"


def same_weights(one: str, other: str) -> bool:
    """Whether two digests may be of the same weights; in another dtype, or unknown, they may."""
    return one == other or one.split(" ")[0] != other.split(" ")[0]
