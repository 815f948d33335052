"""How a model's own answer depends on what its heads put out.

For a language model, a masked one or a classifier the answer is p(·), and labels y drawn from it give the gradient
g = ∂ Σ_t log p(y_t)/∂o with E ggᵀ the Fisher matrix, so that a small change δ of a head's output at a query changes the
answer by KL ≈ ½ E(gᵀδ)². For a sentence encoder the answer is its embedding e, the mean of its last states at length 1, and
g = Jᵀε with random signs ε: the embedding moves by E‖δe‖² ≈ E(gᵀδ)².
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.errors import ModelNotSupported
from attnlimit.models.see.interface import Call, observe
from attnlimit.models.see.load import Loaded

UNITS = {
    "causal-lm": "nats a token",
    "masked-lm": "nats a token",
    "seq2seq": "nats a token",
    "classifier": "nats a text",
    "encoder": "squared change of the embedding",
}
"""What a change of the answer is counted in, by kind of model."""


def half(loaded: Loaded) -> float:
    """What E(gᵀδ)² is multiplied by: KL is half of it, a squared change all of it."""
    return 1.0 if loaded.kind == "encoder" else 0.5


def positions_of_answer(loaded: Loaded, length: int) -> int:
    """Over how many positions of a text the answer is averaged: each token has one, or the text as a whole."""
    return 1 if loaded.kind in ("classifier", "encoder") else length


def answer_gradients(
    loaded: Loaded, ids: Int[Tensor, "1 length"], draws: int, generator: torch.Generator
) -> dict[int, Float[Tensor, "draws length heads dv"]]:
    """g by layer, for every query and head of one text, `draws` times: one forward pass with its graph, and a backward
    pass a draw."""
    outputs: dict[int, Tensor] = {}

    def keep(call: Call) -> Tensor:
        if call.layer in outputs:
            raise ModelNotSupported(
                f"{loaded.name} calls {call.name} more than once for a text, so its answer's gradient is not known: analyse "
                "with answer='off'."
            )
        out = call.output()
        outputs[call.layer] = out if out.requires_grad else out.detach().requires_grad_()
        return outputs[call.layer]

    try:
        with torch.enable_grad(), observe(loaded.model, keep):
            answer = _answer(loaded, ids.to(loaded.model.device))
            found = [_gradients(answer, outputs, loaded.kind, generator, k + 1 < draws) for k in range(draws)]
    except RuntimeError as problem:
        if not isinstance(problem, torch.OutOfMemoryError) and "alloc" not in str(problem):
            raise
        raise ModelNotSupported(
            f"A backward pass of {loaded.name} over {ids.shape[1]} tokens does not fit the memory: use shorter passages "
            "(--tokens), a smaller dtype, or --answer off."
        ) from problem
    return {layer: torch.stack([one[layer] for one in found]) for layer in outputs}


def _answer(loaded: Loaded, ids: Int[Tensor, "1 length"]) -> Tensor:
    """Log-probabilities (positions, classes), or the embedding (d,)."""
    if loaded.kind == "encoder":
        states = loaded.model(input_ids=ids).last_hidden_state[0].float()
        return torch.nn.functional.normalize(states.mean(0), dim=0)
    options: dict[str, Any] = {"decoder_input_ids": ids} if loaded.kind == "seq2seq" else {}
    logits = loaded.model(input_ids=ids, **options).logits
    return logits.reshape(-1, logits.shape[-1]).float().log_softmax(-1)


def _gradients(
    answer: Tensor, outputs: dict[int, Tensor], kind: str, generator: torch.Generator, again: bool
) -> dict[int, Tensor]:
    if kind == "encoder":
        signs = torch.randint(2, answer.shape, generator=generator).to(answer) * 2 - 1
        target = (signs * answer).sum()
    else:
        labels = torch.multinomial(answer.detach().exp().cpu(), 1, generator=generator).to(answer.device)
        target = answer.gather(1, labels).sum()
    given = torch.autograd.grad(target, list(outputs.values()), retain_graph=again, allow_unused=True)
    return {
        layer: (torch.zeros_like(out) if one is None else one)[0].detach().float()
        for (layer, out), one in zip(outputs.items(), given, strict=True)
    }


def strata(length: int, count: int, generator: torch.Generator) -> list[int]:
    """`count` places of a text, one at random in each of as many stretches of equal length."""
    edges = [length * k // count for k in range(count + 1)]
    return [_within(low, high, generator) for low, high in pairwise(edges) if high > low]


def _within(low: int, high: int, generator: torch.Generator) -> int:
    return low + int(torch.randint(high - low, (), generator=generator))


def at(
    gradients: Float[Tensor, "draws length heads dv"], rows: Sequence[int]
) -> Float[Tensor, "draws m heads dv"]:
    """The gradients at some queries."""
    return gradients[:, list(rows)]
