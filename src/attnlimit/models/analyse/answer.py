"""What every head's sampled keys do to the model's answer: measured layer by layer, beside the analysis of the heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs.by_query import contributions, rest_spread
from attnlimit.designs.kept import masks
from attnlimit.exact.nested import nested_squares, shares
from attnlimit.exact.populations import Seen
from attnlimit.models.analyse.unfinished import Unfinished
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.answer import BASE, SPACE, Answer
from attnlimit.models.budget.budgets import Budgets, HeadBudget
from attnlimit.models.see.call import Call
from attnlimit.models.see.gradient import (
    answer_error,
    answer_gradients,
    drawn_by_size,
    model_answer,
    per_query,
    spread_rows,
    unit,
)
from attnlimit.models.see.load import Loaded
from attnlimit.numerics.threads import Waiting, side_by_side

LOOKED_AT, USUAL = 256, replace(BASE, top=24)
"""Queries of a passage, at most, whose errors are looked at roughly, and with what kept, to choose those that are analysed."""
TRIED = (0.05, 0.01, 0.002)
"""Errors of the answer at which what is predicted is tried out."""
TRIED_ON = 8
"""Passages, at most."""
NODES, PAIRS = 3, 16
"""Of the integral between two heads that read the same keys, and pairs of heads in a group, at most."""


class Answering:
    """The answer's gradients of one passage at a time, and all terms that were found with them."""

    def __init__(
        self, loaded: Loaded, windows: Tensor, queries: int, draws: int, seed: int, grouped: bool = False
    ) -> None:
        self.loaded, self.windows, self.draws, self.grouped = loaded, windows, draws, grouped
        self.each = max(1, queries // len(windows))
        self.generator, self.group = torch.Generator().manual_seed(seed), 1
        self.share = shares(windows.shape[1])
        self.terms: dict[tuple[int, int], list[tuple[Tensor, ...]]] = {}
        self.passages: list[int] = []
        self.weights: list[float] = []
        self.waiting = Waiting()

    def read(self, passage: int, look: Callable[[Call, Tensor], object], done: Callable[[], object]) -> None:
        """Go through a passage with a graph, in which calls and what they put out are looked at, and back; choose queries by their part
        in the answer's error; and find what every head adds to it there, layer by layer.

        That part is about Σ ‖g‖² spread² over heads (see designs.by_query): few queries have most of it, and drawn alike they
        would say little of the others. The graph has q, k and v of all layers anyway."""
        ids = self.windows[passage : passage + 1]
        some = spread_rows(ids.shape[1], max(LOOKED_AT, self.each), self.generator)
        calls: list[Call] = []

        def see(call: Call, out: Tensor) -> None:
            look(call, out)
            calls.append(call)

        gradients = answer_gradients(self.loaded, ids, some, self.draws, self.generator, see)
        places = [(call, head) for call in calls for head in range(call.heads)]
        squares = torch.stack(side_by_side(lambda one: _spread_square(*one, some), places))
        parts = zip(squares.split([call.heads for call in calls]), calls, strict=True)
        sizes = [(gradients[call.layer].square().sum((0, 3)).T.cpu() * one).sum(0) for one, call in parts]
        chosen, weight = drawn_by_size(torch.stack(sizes).sum(0), self.each, self.generator)
        self.passages += [passage] * len(chosen)
        self.weights += weight.tolist()
        for call in calls:
            self.add(call, some[chosen], gradients[call.layer][:, chosen])
            done()
        self.waiting.finish()

    def state(self) -> dict[str, Any]:
        """All that the passages so far have added, and where the generator stands."""
        own = {name: getattr(self, name) for name in ("terms", "passages", "weights", "group")}
        return own | {"generator": self.generator.get_state()}

    def go_on(self, state: dict[str, Any]) -> None:
        """After the passages whose state it is."""
        for name in ("terms", "passages", "weights", "group"):
            setattr(self, name, state[name])
        self.generator.set_state(state["generator"])

    @torch.no_grad()
    def add(self, call: Call, rows: Int[Tensor, " m"], gradient: Float[Tensor, "draws m heads dv"]) -> None:
        """One layer at some queries, with the answer's gradients there: each head, or each group of heads that read the same keys."""
        self.group = call.groups if self.grouped else 1
        rows, gradient = rows.to(call.query.device), gradient.to(call.query.device).double()
        first = range(0, call.heads, self.group)
        self.waiting.add(partial(self._head, call, head, rows, gradient) for head in first)

    @torch.no_grad()
    def _head(self, call: Call, head: int, rows: Tensor, gradient: Tensor) -> None:
        heads = range(head, head + self.group)
        value = call.value[0, head // call.groups].double()
        scores = torch.stack([call.scores(0, one, rows) for one in heads]).double()
        call.check_spread(scores, head)
        hidden = scores == -torch.inf
        own = None if call.own_key is None else rows + call.own_key
        space = [one.without(place=own is None) for one in SPACE]
        kept = torch.stack([masks(space, each, own) for each in scores]).any(0) & ~hidden[0]
        weight = torch.stack(
            [call.weights(one[None, None], h)[0, 0] for one, h in zip(scores, heads, strict=True)]
        )
        values = torch.einsum("kd,smhd->hmks", value, gradient[:, :, head : head + self.group])
        sinks = [None if call.sink is None else call.sink[one].float().expand(len(rows)) for one in heads]
        seen = [Seen(*one) for one in zip(scores, values, hidden, sinks, strict=True)]
        rest, squares = ~(kept | hidden[0]), group_squares(seen, weight, kept, self.share)
        parts = [rest_spread(contributions(one, value), rest) for one in weight]
        number, width = parts[0][0][..., 0], sum(one[1][..., 0].square() for one in parts) ** 0.5
        scale = per_query(self.loaded.kind, self.windows.shape[1]) / self.draws
        biases = [_kept_alone(one, each, kept) for one, each in zip(weight, values, strict=True)]
        alone = torch.stack(biases).sum(0)
        found = (squares * scale, alone.square().sum(-1).T * scale, number.T, width.T, (~hidden[0]).sum(1))
        place = call.layer, head // self.group
        self.terms.setdefault(place, []).append(tuple(one.float().cpu() for one in found))

    def found(self) -> Answer:
        """All terms, by layer and head."""
        self.waiting.finish()
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
        share, passage, weight = self.share.float(), torch.tensor(self.passages), torch.tensor(self.weights)
        return Answer(
            unit(self.loaded.kind),
            squares,
            share,
            alone,
            rest,
            widths,
            seen,
            passage,
            weight,
            group=self.group,
        )

    @property
    def passes(self) -> int:
        """Of the sampled model, at most, when budgets are tried out."""
        return min(TRIED_ON, len(self.windows)) * (1 + len(TRIED))

    def tried(
        self, answer: Answer, passed: Callable[[], None] | None = None, kept_in: Unfinished | None = None
    ) -> Answer:
        """With what became of some budgets that were tried out, in passages that they were not chosen on if there are several; what the model
        answered is kept from pass to pass.

        Errors of keys kept alone are biases, which do not average out as draws do: what they are together, over their sum,
        is found first, with kept keys only. Then what is left of second order and of independence is wrong by a factor."""
        passes = _Passes(self.generator, kept_in, passed)
        kept = answer.options(drawn=False).cheapest(error=TRIED[0]).entries
        apart = float(answer.terms(kept)[0].sum((0, 1)).mean())
        passages = torch.arange(min(TRIED_ON, len(self.windows)))
        if apart > 0:
            together = float(self._lost([kept], answer.group, passages, passes).mean())
            answer = replace(answer, alone=answer.alone * max(1.0, together / apart))
        trials = torch.zeros(len(TRIED), 2, len(passages), dtype=torch.float64)
        for some in passages.split(1) if len(passages) == 1 else (passages[::2], passages[1::2]):
            here = torch.isin(torch.arange(len(self.windows)), some)
            options = (answer if bool(here.all()) else answer.of_passages(~here)).options()
            chosen = [options.cheapest(error=level) for level in TRIED]
            trials[:, 1, some] = self._lost([one.entries for one in chosen], answer.group, some, passes)
            for level, one in enumerate(chosen):
                new = answer.by_passage(one.entries)[some]
                trials[level, 0, some] = one.predicted.value if bool(here.all()) else new
        predicted = trials[:, 0].mean(1)
        return replace(answer, trials=trials[predicted.argsort()][predicted.sort().values > 0])

    @torch.no_grad()
    def _lost(
        self,
        tried: Sequence[Sequence[HeadBudget]],
        group: int,
        passages: Int[Tensor, " p"],
        passes: _Passes,
    ) -> Float[Tensor, "tried p"]:
        """What budgets do to the answer in some passages."""
        layers, heads = (1 + max(place[k] for place in self.terms) for k in (0, 1))
        budgets = [Budgets("", layers, heads * group, tuple(one), group=group) for one in tried]
        found = torch.empty(len(tried), len(passages), dtype=torch.float64)
        for column, ids in enumerate(self.windows[passages].to(self.loaded.device).split(1)):
            full = cache(partial(model_answer, self.loaded, ids))
            for row, one in enumerate(budgets):
                found[row, column] = passes.next(partial(self._error, full, ids, one))
        return found

    def _error(self, full: Callable[[], Tensor], ids: Tensor, budgets: Budgets) -> float:
        whole = full()
        with sampled_attention(self.loaded.model, budgets, generator=self.generator):
            return float(answer_error(whole, model_answer(self.loaded, ids)))


class _Passes:
    """Passes of the sampled model in a row: what those gave that an analysis made before it was killed, then new ones."""

    def __init__(
        self, generator: torch.Generator, kept_in: Unfinished | None, passed: Callable[[], None] | None
    ) -> None:
        self.generator, self.kept_in, self.passed = generator, kept_in, passed
        self.known: list[float] = []
        self.at = 0
        state = None if kept_in is None else kept_in.read()
        if state is not None:
            self.known = state["known"]
            generator.set_state(state["generator"])

    def next(self, error: Callable[[], float]) -> float:
        if self.at == len(self.known):
            self.known.append(error())
            if self.kept_in is not None:
                self.kept_in.write({"known": self.known, "generator": self.generator.get_state()})
        self.at += 1
        if self.passed is not None:
            self.passed()
        return self.known[self.at - 1]


def _spread_square(call: Call, head: int, rows: Int[Tensor, " some"]) -> Float[Tensor, " some"]:
    """How widely the keys that are not kept differ in what they do to the outputs of some queries."""
    scores = call.scores(0, head, rows)
    own = None if call.own_key is None else rows.to(scores.device) + call.own_key
    rest = ~(USUAL.without(place=own is None).mask(scores, own) | (scores == -torch.inf))
    weight = call.weights(scores[None, None], head)[0, 0]
    parts = contributions(weight, call.value[0, head // call.groups].to(weight))
    return rest_spread(parts, rest)[1][:, 0].square().cpu()


def group_squares(
    seen: Sequence[Seen],
    weight: Float[Tensor, "heads m keys"],
    kept: Bool[Tensor, "sets m keys"],
    share: Float[Tensor, " k"],
) -> Float[Tensor, "m sets k"]:
    """E‖Σ_h (Γ_n − Γ)_h‖² of heads that keep and draw the same keys.

    With Γ_n − Γ = N/W, N = Σ w u over the keys that are read, two heads have E N·N′/(WW′) = ∫₀¹ E N·N′/W_x² dx, W_x = xW + (1 − x)W′, and
    N·N′ = ¼‖N + N′‖² − ¼‖N − N′‖²: errors of one head with weights xw + (1 − x)w′, three of which give the integral to 1 % or better.
    """
    total = torch.stack([nested_squares(one, kept, share) for one in seen]).sum(0)
    if len(seen) == 1:
        return total
    pairs = torch.combinations(torch.arange(len(seen)))
    some = pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))[:PAIRS]]
    # what a sink takes has no value, −Γ beside the others: one more key, which all keep
    sink = 1 - weight.sum(-1, keepdim=True)
    sink = sink.masked_fill(sink < 1e-12, 0)  # rounding
    weight, always = torch.cat([weight, sink], -1), torch.ones_like(kept[..., :1])
    kept, hidden = torch.cat([kept, always], -1), (weight == 0).all(0)
    for one, other in some.tolist():
        pulls = [_pulls(weight[place], seen[place].values) for place in (one, other)]
        for x, part in zip(*np.polynomial.legendre.leggauss(NODES), strict=True):
            mixed = torch.lerp(weight[other], weight[one], (1 + x) / 2).clamp_min(1e-300)
            for sign in (1, -1):
                both = Seen(mixed.log(), (pulls[0] + sign * pulls[1]) / mixed[..., None], hidden)
                total += sign * part / 4 * len(pairs) / len(some) * nested_squares(both, kept, share)
    return total


def _pulls(
    weight: Float[Tensor, "m more"], values: Float[Tensor, "m keys draws"]
) -> Float[Tensor, "m more draws"]:
    """w u of every key, the last of which has no value."""
    values = torch.cat([values, torch.zeros_like(values[:, :1])], 1)
    return weight[..., None] * (values - weight[:, None] @ values)


def _kept_alone(
    weight: Float[Tensor, "m keys"], values: Float[Tensor, "m keys draws"], kept: Bool[Tensor, "sets m keys"]
) -> Float[Tensor, "sets m draws"]:
    """Error of each query with its kept keys and a sink only, by label."""
    full = weight[:, None] @ values
    mass = weight * kept
    rest = (weight * ~kept).sum(-1)
    found = torch.einsum("smk,mkd->smd", mass, values - full)
    # what a sink takes has no value: −Γ beside the others
    sink = (1 - weight.sum(-1)).clamp_min(0)
    found = found - sink[:, None] * full[:, 0]
    return found / (1 - rest).clamp_min(1e-30)[..., None]
