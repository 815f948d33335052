"""Does a model under `observe` compute what it computes alone? The proof for architectures nobody tried."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnlimit.errors import ModelNotSupported
from attnlimit.models.see.interface import observe


def check_model(model: Any, **inputs: Any) -> float:
    """‖observed − alone‖ / ‖alone‖ of the model's first output on `inputs`, padding left out.

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
            "wrong; choose another architecture, or add an adapter in attnlimit/models/adapters."
        )
    return difference
