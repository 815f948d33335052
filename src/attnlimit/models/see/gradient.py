"""How a model's own answer depends on what its heads put out.

The answer of a language model, a masked one or a classifier is a law p, and labels y drawn from it give the gradient
g = ∂ Σ_t log p(y_t)/∂o with E ggᵀ the Fisher matrix: a small change δ of a head's output o at a query changes the answer by
KL ≈ ½ E(gᵀδ)². The answer of a sentence encoder is its embedding, the mean of its last states at length 1, and g = Jᵀε
with random signs ε: the embedding moves by E‖·‖² ≈ E(gᵀδ)².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, pad

from attnlimit.errors import ModelNotSupported
from attnlimit.models.see.interface import Call, observe
from attnlimit.models.see.load import Loaded, decoder_inputs

NATS, CHANGE = "nats", "squared change of the embedding"
"""What a change of the answer is counted in: KL, or for encoders how far an embedding of length 1 moves."""
AT_ONCE = 128
"""Positions whose laws are compared at once."""
EVEN = 0.5
"""Of the chances that queries are drawn with, the part that all have alike: what their sizes do not tell, as the keys they read, is not left out."""
SCORES = ("regression", "multi_label_classification")
"""Problems of classifiers whose answer is no choice of one label."""
OFF = "analyse without the answer (--answer off)"


def unit(kind: str) -> str:
    """What a change of the answer of such a model is counted in."""
    return CHANGE if kind == "encoder" else NATS


def per_query(kind: str, tokens: int) -> float:
    """What Σ over heads of the mean over queries of E(gᵀδ)² is multiplied by: nats a token of a language model, nats a
    text of a classifier, the squared change of an encoder."""
    half = 1.0 if kind == "encoder" else 0.5
    return half * tokens if kind in ("classifier", "encoder") else half


def answer_gradients(
    loaded: Loaded,
    ids: Int[Tensor, "1 length"],
    rows: Int[Tensor, " m"],
    draws: int,
    generator: torch.Generator,
    look: Callable[[Call, Float[Tensor, "1 length heads dv"]], object] | None = None,
) -> dict[int, Float[Tensor, "draws m heads dv"]]:
    """g by layer, at some queries of one text, `draws` times: one forward pass with its graph, in which every call and what it puts
    out can be looked at, and a backward pass a draw."""
    outputs: dict[int, Tensor] = {}

    def keep(call: Call) -> Tensor:
        if call.layer in outputs:
            raise ModelNotSupported(
                f"{loaded.name} calls {call.name} more than once for a text, so the gradient of its answer is not known: "
                f"{OFF}."
            )
        out = call.output().contiguous()
        outputs[call.layer] = out if out.requires_grad else out.detach().requires_grad_()
        if look is not None:
            with torch.no_grad():
                look(call.detached(), out.detach())
        return outputs[call.layer]

    _check_choice(loaded)
    with _enough_memory(loaded, ids), torch.enable_grad(), observe(loaded.model, keep):
        output, heads = _run(loaded, ids.to(loaded.device)), list(outputs.values())
        end = answer_of(loaded, output) if loaded.kind == "encoder" else output.logits.flatten(0, -2)
        found = []
        for draw in range(draws):
            pull, again = _pull(end.detach(), loaded.kind, generator), draw + 1 < draws
            found.append(torch.autograd.grad(end, heads, pull, retain_graph=again, materialize_grads=True))
    return {
        layer: torch.stack([one[0, rows.to(one.device)].float() for one in each])
        for layer, each in zip(outputs, zip(*found, strict=True), strict=True)
    }


@contextmanager
def _enough_memory(loaded: Loaded, ids: Tensor) -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:
        if not isinstance(problem, torch.OutOfMemoryError) and "alloc" not in str(problem):
            raise
        raise ModelNotSupported(
            f"A backward pass of {loaded.name} over {ids.shape[1]} tokens does not fit the memory: use shorter passages "
            f"(--tokens), a smaller dtype, or {OFF}."
        ) from problem


def model_answer(loaded: Loaded, ids: Int[Tensor, "1 length"]) -> Tensor:
    """What a model says of one text."""
    return answer_of(loaded, _run(loaded, ids))


def _run(loaded: Loaded, ids: Int[Tensor, "1 length"]) -> Any:
    return loaded.model(input_ids=ids, **decoder_inputs(loaded, ids))


def answer_of(loaded: Loaded, output: Any) -> Float[Tensor, "positions classes"] | Float[Tensor, " d"]:
    """What a model says of one text: log-probabilities, or the embedding."""
    _check_choice(loaded)
    if loaded.kind == "encoder":
        return normalize(output.last_hidden_state[0].float().mean(0), dim=0)
    return output.logits.flatten(0, -2).float().log_softmax(-1)


def _check_choice(loaded: Loaded) -> None:
    """Of one score, and of scores that do not exclude each other, softmax makes what never changes, or what the model does not say."""
    config = loaded.model.config
    kind = getattr(config, "problem_type", None)
    if loaded.kind == "classifier" and (config.num_labels < 2 or kind in SCORES):
        what = "a score" if config.num_labels < 2 else f"{config.num_labels} scores ({kind})"
        raise ModelNotSupported(
            f"{loaded.name} gives a text {what}, which is no choice of one label among several, so there is no KL of its answer: "
            f"{OFF}, or load it with task='encoder' for the change of its embedding."
        )


def answer_error(full: Tensor, sampled: Tensor) -> float:
    """KL(full ‖ sampled) in nats, mean over positions, or the squared change of the embedding."""
    if full.ndim == 1:
        return float((sampled - full).double().square().sum())
    pairs = zip(full.split(AT_ONCE), sampled.split(AT_ONCE), strict=True)
    total = sum(float((p.exp() * (p - q)).sum(-1).double().sum()) for p, q in pairs)
    return max(0.0, total / len(full))


def _pull(end: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """The gradient that is drawn, in the embedding itself or in the logits: of log p(y), that is 1 at the label less p."""
    if kind == "encoder":
        return torch.randint(2, end.shape, generator=generator).to(end) * 2 - 1
    pull, place = torch.empty_like(end), torch.rand(len(end), 1, generator=generator, dtype=torch.float64)
    for logits, share, out in zip(*(one.split(AT_ONCE) for one in (end, place, pull)), strict=True):
        law = logits.float().softmax(-1)
        label = _label(law, share.to(law.device))
        out.copy_(law.neg_().scatter_add_(1, label, torch.ones_like(label, dtype=law.dtype)))
    return pull


def _label(
    law: Float[Tensor, "positions classes"], share: Float[Tensor, "positions 1"]
) -> Int[Tensor, "positions 1"]:
    """Where the running sum of each law passes a share of it, found first among blocks of classes, then in the block: all running sums
    take four times as long, and torch.multinomial six times as long as these."""
    step = math.isqrt(law.shape[1]) + 1
    blocks = pad(law, (0, -law.shape[1] % step)).unflatten(1, (-1, step))
    below = blocks.sum(-1).double().cumsum(-1)
    share = share * below[:, -1:]
    block = torch.searchsorted(below, share).clamp_max(below.shape[1] - 1)
    inside = blocks[torch.arange(len(law), device=law.device)[:, None], block][:, 0].double().cumsum(-1)
    place = torch.searchsorted(inside, share - below.gather(1, block) + inside[:, -1:])
    return (block * step + place.clamp_max(step - 1)).clamp_max(law.shape[1] - 1)


def spread_rows(length: int, count: int, generator: torch.Generator) -> Int[Tensor, " m"]:
    """Places of a text, one at random in each of `count` stretches of equal length."""
    count = min(count, length)
    edges = torch.arange(count + 1) * length // count
    return edges[:-1] + (torch.rand(count, generator=generator) * edges.diff()).long()


def drawn_by_size(
    size: Float[Tensor, " all"], count: int, generator: torch.Generator
) -> tuple[Int[Tensor, " m"], Float[Tensor, " m"]]:
    """`count` different places, in order, with chances π that grow with their size, and weights 1/(all · π): the mean of weight ·
    anything over them is, on average over draws, its mean over all places.

    The places stand at equal steps of the sum of π, and so are spread over the text."""
    total = float(size.sum())
    if count >= len(size) or not 0 < total < torch.inf:
        count = min(count, len(size))
        return spread_rows(len(size), count, generator), torch.ones(count, dtype=torch.float64)
    chance = count * (EVEN / len(size) + (1 - EVEN) * size.double() / total)
    while bool((chance > 1 + 1e-9).any()):  # what is sure leaves its surplus to the others
        sure = chance >= 1
        rest = count - int(sure.sum())
        chance = torch.where(sure, 1.0, chance * (rest / chance[~sure].sum()))
    points = torch.arange(count) + torch.rand(1, generator=generator, dtype=torch.float64)
    place = torch.searchsorted(chance.cumsum(0), points).clamp_max(len(size) - 1)
    return place, count / (len(size) * chance[place])
