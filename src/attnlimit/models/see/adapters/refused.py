"""Models that cannot be seen, by name, and what to do instead."""

from __future__ import annotations

from torch import nn

from attnlimit.errors import ModelNotSupported

NO_SOFTMAX = {
    "falcon_mamba": "a state-space model",
    "fnet": "Fourier mixing",
    "mamba": "a state-space model",
    "mamba2": "a state-space model",
    "nystromformer": "low-rank attention",
    "poolformer": "pooling",
    "reformer": "hashed attention",
    "rwkv": "linear attention",
    "xlstm": "a recurrent model",
    "yoso": "Bernoulli-sampled attention",
}
"""Model types whose layers are no softmax attention at all."""

OWN_ATTENTION = {
    "bloom": "ALiBi attention of its own; a Llama, Qwen or GPT-NeoX model of that size works",
    "codegen": "attention of its own; GPT-2, GPT-NeoX or Llama models work",
    "deberta": "disentangled position attention; BERT, RoBERTa, ELECTRA or ModernBERT models work",
    "deberta-v2": "disentangled position attention; BERT, RoBERTa, ELECTRA or ModernBERT models work",
    "falcon": "attention of its own; a Llama, Qwen or Mistral model of that size works",
    "gpt_neo": "attention of its own; GPT-2 or GPT-NeoX (Pythia) models work",
    "gptj": "attention of its own; GPT-NeoX (Pythia) or Llama models work",
    "led": "attention in chunks; T5 models work",
    "longformer": "attention in chunks; ModernBERT models, or BigBird with full attention, work for long texts",
    "mpt": "ALiBi attention of its own; a Llama, Qwen or Mistral model of that size works",
    "xlnet": "two-stream attention of its own; BERT or ModernBERT models work",
}
"""Model types that compute attention themselves, without asking transformers' attention interface."""


def refuse_by_name(model: nn.Module, on_interface: bool) -> None:
    """Raise for models without softmax attention, and for those known to compute it out of sight.

    Models that are not known are found out by calling them.
    """
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    title = f"{type(model).__name__} (model type '{kind}')"
    if kind in NO_SOFTMAX:
        raise ModelNotSupported(
            f"{title} is {NO_SOFTMAX[kind]}: it has no softmax attention over keys, so there is no number of keys "
            "to ask for. Use a model with softmax attention, e.g. BERT or Llama."
        )
    if kind in OWN_ATTENTION and not on_interface:
        raise ModelNotSupported(
            f"{title} does not attend through transformers' attention interface, so its keys cannot be seen: "
            f"it has {OWN_ATTENTION[kind]}."
        )


def advice(was_run: bool) -> str:
    """What to do about a model whose calls do not arrive."""
    unseen = (
        "it does not attend through transformers' attention interface: choose a model that does (BERT, ModernBERT, "
        "GPT-2, GPT-NeoX, Llama, Mistral, Qwen, Gemma, T5), or add an adapter in attnlimit/models/see/adapters."
    )
    if was_run:
        return f"It was run, so {unseen}"
    return (
        "Either the model was not run inside the block; or only a part of it was (then observe that part, e.g. "
        f"model.get_encoder()); or {unseen}"
    )
