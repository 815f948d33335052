"""What every head's sampled keys do to the model's answer: measured layer by layer, beside the analysis of the heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.designs.by_query import contributions, rest_spread
from attnlimit.exact.nested import nested_squares, shares
from attnlimit.exact.populations import Seen
from attnlimit.models.budget.answer import SPACE, Answer
from attnlimit.models.budget.budgets import HeadBudget
from attnlimit.models.see.call import Call
from attnlimit.models.see.gradient import (
    answer_error,
    answer_gradients,
    model_answer,
    per_query,
    spread_rows,
    unit,
)
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded

TRIED = 0.03


class Answering:
    """The answer's gradients of one passage at a time, and all terms that were found with them."""

    def __init__(self, loaded: Loaded, windows: Tensor, queries: int, draws: int, seed: int) -> None:
        self.loaded, self.windows, self.draws = loaded, windows, draws
        self.each = max(1, queries // len(windows))
        self.generator = torch.Generator().manual_seed(seed)
        self.gradients: dict[int, Float[Tensor, "draws m heads dv"]] = {}
        self.rows = torch.empty(0, dtype=torch.long)
        self.share = shares(windows.shape[1])
        self.terms: dict[tuple[int, int], list[tuple[Tensor, ...]]] = {}
        self.passages: list[int] = []

    def read(self, passage: int) -> None:
        """Go through a passage with a graph, and back."""
        ids = self.windows[passage : passage + 1]
        self.rows = spread_rows(ids.shape[1], self.each, self.generator)
        self.gradients = answer_gradients(self.loaded, ids, self.rows, self.draws, self.generator)
        self.passages += [passage] * len(self.rows)

    def add(self, call: Call, head: int) -> None:
        """One head at the passage's queries."""
        rows = self.rows.to(call.query.device)
        scores, value = call.scores(0, head, rows), call.value[0, head // call.groups]
        hidden = scores == -torch.inf
        own = None if call.own_key is None else rows + call.own_key
        space = [one.without(place=own is None) for one in SPACE]
        kept = torch.stack([one.mask(scores, own) & ~hidden for one in space])
        gradient = self.gradients[call.layer][:, :, head].to(value.device)
        values = torch.einsum("kd,smd->mks", value.double(), gradient.double())
        sink = None if call.sink is None else call.sink[head].float().expand(len(rows))
        squares = nested_squares(Seen(scores.double(), values, hidden, sink), kept, self.share)
        rest, weight = ~(kept | hidden), call.weights(scores[None, None], head)[0, 0].double()
        number, widths = (one[..., 0] for one in rest_spread(contributions(weight, value.double()), rest))
        scale = per_query(self.loaded.kind, self.windows.shape[1]) / self.draws
        alone = _kept_alone(weight, values, kept)
        found = (squares * scale, alone.T * scale, number.T, widths.T, (~hidden).sum(1))
        self.terms.setdefault((call.layer, head), []).append(tuple(one.float().cpu() for one in found))

    def found(self) -> Answer:
        """All terms, by layer and head."""
        layers, heads = (1 + max(place[k] for place in self.terms) for k in (0, 1))
        joined = {
            place: [torch.cat(part) for part in zip(*each, strict=True)] for place, each in self.terms.items()
        }
        like = next(iter(joined.values()))
        nothing = [torch.zeros_like(part) for part in like]
        rows = [[joined.get((layer, head), nothing) for head in range(heads)] for layer in range(layers)]
        squares, alone, rest, widths, seen = (
            torch.stack([torch.stack([one[k] for one in row]) for row in rows]) for k in range(5)
        )
        share, passage = self.share.float(), torch.tensor(self.passages)
        found = Answer(unit(self.loaded.kind), squares, share, alone, rest, widths, seen, passage)
        return replace(found, alone=alone * self._together(found))

    def _together(self, answer: Answer) -> float:
        """What errors of kept keys alone are together, over their sum: they are biases, which do not average out as draws
        do. Tried out on the passages, with kept keys for an error of about `TRIED`."""
        tried = answer.options(by_query=False).only(lambda one: not one.n).cheapest(error=TRIED).entries
        apart = float(answer.terms(tried)[0].sum((0, 1)).mean())
        together = 0.0
        for ids in self.windows.split(1):
            given = ids.to(self.loaded.model.device)
            with torch.no_grad():
                full = model_answer(self.loaded, given)
                with observe(self.loaded.model, partial(_kept_only, tried)):
                    together += answer_error(full, model_answer(self.loaded, given)) / len(self.windows)
        return max(1.0, together / apart) if apart > 0 else 1.0


def _kept_only(budgets: Sequence[HeadBudget], call: Call) -> Tensor:
    """The heads' outputs from the keys that they keep; all keys where a budget has them."""
    out = call.output().clone()
    of_layer = [one for one in budgets if one.layer == call.layer]
    for rows in call.blocks(call.heads):
        scores = call.block_scores(rows).masked_fill(~call.seen(rows), -torch.inf)
        own = None if call.own_key is None else rows + call.own_key
        kept = [
            scores[0, one.head] > -torch.inf
            if one.n is None
            else one.sampling.kept.without(place=own is None).mask(scores[0, one.head], own)
            for one in of_layer
        ]
        out[:, rows] = call.attended(rows, torch.stack(kept)[None] & (scores > -torch.inf)).transpose(1, 2)
    return out


def _kept_alone(
    weight: Float[Tensor, "m keys"], values: Float[Tensor, "m keys draws"], kept: Bool[Tensor, "sets m keys"]
) -> Float[Tensor, "sets m"]:
    """Squared error of each query with its kept keys and a sink only, all labels together."""
    full = weight[:, None] @ values
    mass = weight * kept
    rest = (weight * ~kept).sum(-1)
    found = torch.einsum("smk,mkd->smd", mass, values - full)
    # what a sink takes has no value: −Γ beside the others
    sink = (1 - weight.sum(-1)).clamp_min(0)
    found = found - sink[:, None] * full[:, 0]
    return (found / (1 - rest).clamp_min(1e-30)[..., None]).square().sum(-1)
