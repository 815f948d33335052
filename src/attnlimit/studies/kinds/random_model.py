"""Small models with random weights, to run the code of large ones where their weights cannot be had.

The query weights of head h are scaled so that horizons spread over the phases, from averaging to few keys: with the
usual small weights all heads would average.
"""

from __future__ import annotations

from typing import Any

import torch

from attnlimit.models.see.load import Loaded, packaged_bert

HEADS, LAYERS, WIDTH = 4, 2, 64
LOW, HIGH = 1.2, 12.0
"""Factors of the query weights, which give horizons from about 0.4 to 2.5."""
CLASSES = {"random-bert": "BertModel", "random-bigbird": "BigBirdModel", "random-classifier": "BigBirdForSequenceClassification"}  # fmt: skip


def random_model(name: str) -> Loaded:
    """A BERT with 512 positions, a BigBird with 4096, or a BigBird that puts a text into one of four classes; their
    tokenizer is the packaged BERT's. The same weights every time."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(packaged_bert(), local_files_only=True)
    kind = CLASSES[name]
    big = "BigBird" in kind
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
        model = getattr(transformers, kind)(config).eval().requires_grad_(False)
    for layer in range(LAYERS):
        _spread(model.get_submodule(_attention(model, layer)), layer)
    return Loaded(model, tokenizer, name, "classifier" if "classifier" in name else "encoder")


def _attention(model: Any, layer: int) -> str:
    names = [name for name, module in model.named_modules() if hasattr(module, "query")]
    return str(names[layer])


def _spread(module: Any, layer: int) -> None:
    steps = LAYERS * HEADS - 1
    factors = [LOW * (HIGH / LOW) ** ((layer + LAYERS * head) / steps) for head in range(HEADS)]
    scale = torch.tensor(factors).repeat_interleave(WIDTH // HEADS)
    module.query.weight.mul_(scale[:, None])
    module.query.bias.mul_(scale)
