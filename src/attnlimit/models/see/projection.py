"""How much each head's output moves what its layer adds to the model: found at the module that the outputs go into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class OutputShares:
    """E‖W_h Γ_h‖² / E‖Σ_h W_h Γ_h‖² of every head, W_h the part of the layer's output projection that it goes through.

    Models name that projection in many ways, but it is always the linear module that is called next with the very
    memory of the heads' outputs. Where none is (as in a fused layer), a layer has no shares.
    """

    def __init__(self) -> None:
        self.waiting: tuple[int, int, Tensor] | None = None
        self.parts: dict[int, Tensor] = {}
        self.whole: dict[int, Tensor] = {}

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """While inside, projections are looked for."""
        with ExitStack() as stack:
            for module in model.modules():
                weight = getattr(module, "weight", None)
                if isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
                    stack.callback(module.register_forward_pre_hook(self._called).remove)
            yield

    def expect(self, layer: int, output: Float[Tensor, "b l h dv"], rows: Tensor) -> None:
        """These outputs are about to be projected; (text, query) `rows` are looked at."""
        self.waiting = (layer, output.data_ptr(), rows)
        self.shape = output.shape

    @torch.no_grad()
    def _called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.waiting is None or not args or not isinstance(args[0], Tensor):
            return
        (layer, pointer, rows), x = self.waiting, args[0]
        heads, width = self.shape[2:]
        if x.data_ptr() != pointer or x.shape != (*self.shape[:2], heads * width):
            return
        self.waiting = None
        picked = x[rows[:, 0], rows[:, 1]].view(-1, heads, width)
        each = torch.zeros(heads, *picked.shape, dtype=x.dtype, device=x.device)
        each[range(heads), :, range(heads)] = picked.transpose(0, 1)
        # forward itself: calling the module would come back here
        constant = module.forward(x.new_zeros(1, heads * width))
        projected = (module.forward(each.flatten(2)) - constant).double().cpu()
        part, whole = projected.square().sum((1, 2)), projected.sum(0).square().sum()
        self.parts[layer] = self.parts.get(layer, 0) + part
        self.whole[layer] = self.whole.get(layer, 0) + whole

    def share(self, layer: int, head: int) -> float | None:
        """0 where the whole layer adds nothing."""
        if layer not in self.parts:
            return None
        return float(self.parts[layer][head] / self.whole[layer].clamp_min(1e-300))
