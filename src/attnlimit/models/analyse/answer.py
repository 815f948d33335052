"""What every head's sampled keys do to the model's answer: measured layer by layer, beside the analysis of the heads."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.designs.by_query import contributions, spread
from attnlimit.exact.nested import nested_squares, shares
from attnlimit.exact.populations import Seen
from attnlimit.models.budget.answer import SPACE, Answer
from attnlimit.models.see.call import Call
from attnlimit.models.see.gradient import answer_gradients, per_query, spread_rows, unit
from attnlimit.models.see.load import Loaded


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
        rest = (~(kept | hidden)).double()
        part = contributions(call.weights(scores[None, None], head)[0, 0].double(), value.double()) * rest
        number = rest.sum(-1)
        widths = spread(number, part.sum(-1), part.square().sum(-1))
        scale = per_query(self.loaded.kind, self.windows.shape[1]) / self.draws
        found = (squares * scale, number.T, widths.T, (~hidden).sum(1))
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
        squares, rest, widths, seen = (
            torch.stack([torch.stack([one[k] for one in row]) for row in rows]) for k in range(4)
        )
        passage = torch.tensor(self.passages)
        return Answer(unit(self.loaded.kind), squares, self.share.float(), rest, widths, seen, passage)
