"""Hugging Face models: their attention calls, what each head needs, and attention with fewer keys."""

from attnlimit.models.interface import Call, Handler, LayerInfo, Observed, attention_layers, observe

__all__ = ["Call", "Handler", "LayerInfo", "Observed", "attention_layers", "observe"]
