"""Are the keys that a head is said to read those that the answer comes from? Deletion and insertion.

Every query orders the keys that it sees, in every head of the full model. Then all heads read only the first of them
(insertion: a faithful order changes the answer little), or all but the first (deletion: it changes the answer much).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs.by_query import contributions
from attnlimit.models.see.call import Call
from attnlimit.models.see.gradient import answer_error, answer_gradients, model_answer
from attnlimit.models.see.interface import Handler, observe
from attnlimit.models.see.load import Loaded

ORDERS = ("part in the answer", "part in the output", "weight", "gradient × value", "random")
"""|p_j gᵀ(v_j − Γ)|, p_j ‖v_j − Γ‖, p_j, |p_j gᵀv_j| (over labels: root mean square), and any order."""
CURVES = ("insertion", "deletion")
LABELS = 4


def faithfulness(
    loaded: Loaded, ids: Int[Tensor, "1 length"], shares: Sequence[float], generator: torch.Generator
) -> Float[Tensor, "orders curves shares"]:
    """How far the answer to one text changes: nats of KL a token (a classifier: a text), or the squared change of an embedding."""
    rows = torch.arange(ids.shape[1])
    gradients = answer_gradients(loaded, ids, rows, LABELS, generator)
    ids = ids.to(loaded.model.device)
    found = torch.zeros(len(ORDERS), len(CURVES), len(shares), dtype=torch.float64)
    with torch.no_grad():
        full = model_answer(loaded, ids)
        for place, order in enumerate(ORDERS):
            ranks: dict[int, Tensor] = {}

            def rank(call: Call, order: str = order, ranks: dict[int, Tensor] = ranks) -> None:
                ranks[call.layer] = _ranks(call, order, gradients[call.layer], generator)

            with observe(loaded.model, rank):
                model_answer(loaded, ids)
            for curve, name in enumerate(CURVES):
                for k, share in enumerate(shares):
                    with observe(loaded.model, _reading(ranks, share, name)):
                        found[place, curve, k] = answer_error(full, model_answer(loaded, ids))
    return found


def _ranks(
    call: Call, order: str, gradient: Float[Tensor, "labels m heads dv"], generator: torch.Generator
) -> Int[Tensor, "1 heads m keys"]:
    """Of the keys of every query, from 0 for the first; those that it does not see come last."""
    rows = torch.arange(call.query.shape[2], device=call.query.device)
    scores = torch.stack([call.scores(0, head, rows) for head in range(call.heads)])
    weights = call.weights(scores[None])[0]
    values = call.value[0].float().repeat_interleave(call.groups, 0)
    if order == "random":
        by = torch.rand(weights.shape, generator=generator).to(weights)
    elif order == "weight":
        by = weights
    elif order == "part in the output":
        by = contributions(weights, values)
    else:
        each = torch.einsum("lmhd,hkd->lhmk", gradient.to(values), values)
        if order == "part in the answer":
            each = each - (each * weights).sum(-1, keepdim=True)
        by = weights * each.square().mean(0).sqrt()
    by = by.masked_fill(scores == -torch.inf, -1.0)
    narrow = torch.int16 if by.shape[-1] < 2**15 else torch.int32
    return by.argsort(-1, descending=True).argsort(-1)[None].to(narrow)


def _reading(ranks: dict[int, Tensor], share: float, curve: str) -> Handler:
    """Attention to the first of the keys, or to all others; to one at the least."""

    def attend(call: Call) -> Tensor:
        rows = torch.arange(call.query.shape[2], device=call.query.device)
        seen = call.seen(rows)
        allowed = seen & _allowed(ranks[call.layer], seen.sum(-1, keepdim=True), share, curve)
        return call.attended(rows, allowed).transpose(1, 2)

    return attend


def _allowed(
    ranks: Int[Tensor, "1 heads m keys"], seen: Int[Tensor, "1 _ m 1"], share: float, curve: str
) -> Bool[Tensor, "1 heads m keys"]:
    """
    >>> ranks, seen = torch.arange(4).view(1, 1, 1, 4), torch.full((1, 1, 1, 1), 4)
    >>> [_allowed(ranks, seen, share, "insertion").sum().item() for share in (0.1, 0.5, 1.0)]
    [1, 2, 4]
    >>> [_allowed(ranks, seen, share, "deletion").sum().item() for share in (0.1, 0.5, 1.0)]
    [3, 2, 1]
    """
    first = (share * seen).ceil()
    return ranks < first if curve == "insertion" else ranks >= first.minimum(seen - 1)
