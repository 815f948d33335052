"""One pass of the model, layer by layer: what every head reads at every token, and at chosen ones in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from attnlimit.errors import ModelNotSupported
from attnlimit.exact.populations import Seen
from attnlimit.exact.prepare import MODELS_BIN_ABOVE, prepare_seen
from attnlimit.models.budget.needed import RANDOM
from attnlimit.models.explain.reads import agreement, along, certainty, first_within, read_only
from attnlimit.models.explain.result import DECADES, NAMED, STEPS, HeadRead, Lost, Map
from attnlimit.models.explain.roles import counted_queries, roles_of, shares
from attnlimit.models.see.call import Call, wide
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded, run_backbone
from attnlimit.models.see.progress import Progress, unheard

LISTED = 16
"""Keys that a chosen token lists, at most."""
RANDOM_SETS = 16
"""Over which the loss with random keys is averaged, to second order."""
HALF = 0.5
"""Of the others: what is seen of them, for the interval of a weight."""


class Passed:
    """Takes every call of a pass over texts whose tokens attend to their own text."""

    def __init__(self, ids: Int[Tensor, "*texts tokens"]) -> None:
        self.ids, self.seen = ids, set[int]()

    def over(self, loaded: Loaded, progress: Progress = unheard) -> None:
        """The model reads the texts."""

        def handle(call: Call) -> None:
            self.handle(call)
            progress(len(self.seen), len(observed.layers))

        with torch.no_grad(), observe(loaded.model, handle) as observed:
            run_backbone(loaded, input_ids=self.ids.view(-1, self.ids.shape[-1]).to(loaded.model.device))

    def handle(self, call: Call) -> None:
        if call.own_key != 0 or call.query.shape[2] != call.key.shape[2]:
            raise ModelNotSupported(
                f"{call.name} attends to another text than its own ({call.query.shape[2]} queries, {call.key.shape[2]} keys): what "
                "a token reads is explained within one text."
            )
        if call.layer in self.seen:
            raise ModelNotSupported(
                f"{call.name} is called more than once for a text, so that a head of it has several answers to what it reads."
            )
        self.layer(call)
        self.seen.add(call.layer)

    def layer(self, call: Call) -> None:
        raise NotImplementedError


class Made(Passed):
    """The roles' shares on texts of random tokens that are said twice, at the second time."""

    def __init__(self, ids: Int[Tensor, "texts tokens"], before: int, after: int) -> None:
        super().__init__(ids)
        length = ids.shape[1]
        self.special = torch.zeros(length, dtype=torch.bool)
        self.special[:before] = True
        self.special[length - after :] = True
        self.rows = torch.arange(before + (length - before - after) // 2, length - after)
        self.found: list[tuple[Tensor, Tensor]] = []

    def layer(self, call: Call) -> None:
        device = call.query.device
        rows, special = self.rows.to(device), self.special.to(device)
        weights, seen = call.attention(rows)
        each = [
            shares(weights[k], seen[min(k, len(seen) - 1)], roles_of(ids.to(device), special, rows))
            for k, ids in enumerate(self.ids)
        ]
        both = (torch.cat([one[k] for one in each], 1).cpu() for k in (0, 1))
        self.found.append(tuple(both))  # type: ignore[arg-type]

    def shares(self) -> tuple[Float[Tensor, "heads m roles"], Float[Tensor, "heads m roles"]]:
        """Of all heads, and their chance."""
        return torch.cat([one[0] for one in self.found]), torch.cat([one[1] for one in self.found])


class Look(Passed):
    """All heads at all tokens of one text. Of a layer, weights of some queries exist at a time."""

    def __init__(
        self,
        ids: Int[Tensor, " tokens"],
        special: Bool[Tensor, " tokens"],
        gradients: Mapping[int, Float[Tensor, "draws tokens heads dv"]],
        half: float,
        chosen: tuple[int, ...],
        rel_error: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__(ids)
        self.special, self.gradients, self.half = special, gradients, half
        self.chosen, self.rel_error, self.generator = chosen, rel_error, generator
        self.parts: dict[str, list[Tensor]] = {}
        self.reads: list[list[HeadRead]] = [[] for _ in chosen]
        self.sets: list[dict[tuple[int, int], Bool[Tensor, " tokens"]]] = [{} for _ in chosen]
        """Of each chosen token: the needed keys of every head."""

    def layer(self, call: Call) -> None:
        blocks = [self._block(call, rows) for rows in call.blocks(call.heads)]
        for name in blocks[0]:
            joined = torch.cat([one[name] for one in blocks], 1)
            self.parts.setdefault(name, []).append(joined[:1] if name == "seen" else joined)
        for place, at in enumerate(self.chosen):
            self._choose(call, place, at)

    def _block(self, call: Call, rows: Int[Tensor, " m"]) -> dict[str, Tensor]:
        """The map of one layer at some queries."""
        weights, seen = (one[0].expand(-1, len(rows), -1) for one in call.attention(rows))
        values = wide(call.value[0]).repeat_interleave(call.groups, 0)
        top = weights.topk(min(NAMED, weights.shape[-1]), -1)
        named = torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, top.indices, True) & seen
        output = weights @ values
        average = read_only(weights, values, torch.zeros_like(named), seen)
        explained = read_only(weights, values, named, seen)
        number = seen.sum(-1)
        size = values.square().sum(-1).mean(-1)[:, None]
        ids, special = self.ids.to(rows.device), self.special.to(rows.device)
        found, chance = shares(weights, seen, roles_of(ids, special, rows))
        parts = {
            "keys": top.indices,
            "weights": top.values,
            "certainty": certainty(explained, average, output, number - named.sum(-1), size),
            "seen": number,
            "shares": found,
            "chance": chance,
        }
        if self.gradients:
            g = self.gradients[call.layer][:, rows.cpu()].to(output).movedim(2, 1)
            parts["matters"] = self.half * (g * (average - output)).sum(-1).square().mean(0)
        return {name: one.cpu() for name, one in parts.items()}

    def _choose(self, call: Call, place: int, at: int) -> None:
        """Every head at one chosen query."""
        row = torch.tensor([at], device=call.query.device)
        weights, seen = (one[0, :, 0].expand(call.heads, -1) for one in call.attention(row))
        weights = weights.double()
        values = call.value[0].repeat_interleave(call.groups, 0).double()
        g = self.gradients[call.layer][:, at].to(weights).unbind(1) if self.gradients else [None] * call.heads
        found = [self._head(*known) for known in zip(g, weights, values, seen, strict=True)]
        sets = torch.stack([named for _, named in found])
        halves = _half_seen(call, at, sets)
        for head, (read, named) in enumerate(found):
            weight = float((weights[head] * named).sum())
            ends = (max(0.0, weight - halves[head]), min(1.0, weight + halves[head]))
            read |= {"layer": call.layer, "head": head, "weight_interval": ends, "measured": None}
            self.reads[place].append(HeadRead(**read))
            self.sets[place][call.layer, head] = named.cpu()

    def _head(
        self,
        g: Float[Tensor, "draws d"] | None,
        p: Float[Tensor, " n"],
        v: Float[Tensor, "n d"],
        seen: Bool[Tensor, " n"],
    ) -> tuple[dict[str, Any], Bool[Tensor, " n"]]:
        """The explanation of one head at one query, and its set of keys."""
        order = p.masked_fill(~seen, -1.0).argsort(descending=True, stable=True)[: int(seen.sum())]
        steps, output = along(p, v, order), p @ v
        off = (steps - output).norm(dim=-1)
        needed = first_within(off, self.rel_error * output.norm())
        named = torch.zeros_like(seen)
        named[order[:needed]] = True
        few = min(NAMED, len(order))
        size = v[seen].square().sum(-1).mean()
        sure = certainty(steps[few], steps[0], output, torch.tensor(len(order) - few), size)
        read: dict[str, Any] = {
            "needed": needed,
            "keys": tuple(order[: min(needed, LISTED)].tolist()),
            "weights": tuple(p[order[: min(needed, LISTED)]].tolist()),
            "others": len(order) - needed,
            "others_weight": float((p * (seen & ~named)).sum()),
            "certainty": float(sure),
        }
        if g is None:
            return read | dict.fromkeys(("needed_for_answer", "matters", "agreement", "predicted")), named
        return read | self._for_answer(g, p, v, order, steps, needed), named

    def _for_answer(
        self,
        g: Float[Tensor, "draws d"],
        p: Float[Tensor, " n"],
        v: Float[Tensor, "n d"],
        order: Int[Tensor, " k"],
        steps: Float[Tensor, "_ d"],
        needed: int,
    ) -> dict[str, Any]:
        """What the explanation, and random sets as large, do to the answer."""
        output = p @ v

        def lost(made: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
            return self.half * ((made - output) @ g.T).square().mean(-1)

        rolls = torch.rand(RANDOM_SETS, len(order), generator=self.generator).to(order.device)
        seen = torch.zeros(len(p), dtype=torch.bool, device=p.device).scatter_(0, order, True)
        sets = torch.zeros(RANDOM_SETS, len(p), dtype=torch.bool, device=p.device)
        sets.scatter_(1, order[rolls.argsort(1)[:, :needed]], True)
        by_step, random = lost(steps), lost(read_only(p.expand(RANDOM_SETS, -1), v, sets, seen))
        parts = p[order] * (g @ (v[order] - output).T)
        (all_of_it,) = lost(torch.zeros_like(steps[:1]))
        return {
            "needed_for_answer": first_within(by_step, self.rel_error**2 * all_of_it),
            "matters": float(by_step[0]),
            "agreement": agreement(parts, NAMED) if len(g) > 1 else None,
            "predicted": Lost(float(by_step[needed]), float(random.mean())),
        }

    def shares(self) -> tuple[Float[Tensor, "heads m roles"], Float[Tensor, "heads m roles"]]:
        """Of all heads, at the queries that count, and their chance."""
        rows = counted_queries(self.parts["seen"][0][0], self.special)
        return tuple(torch.cat([one[:, rows] for one in self.parts[name]]) for name in ("shares", "chance"))  # type: ignore[return-value]

    def mean_matter(self) -> Float[Tensor, " heads"] | None:
        """Over all tokens."""
        return torch.cat(self.parts["matters"]).double().mean(1) if self.gradients else None

    def map(self) -> Map:
        def all_heads(name: str, scale: float = 1.0) -> np.ndarray:
            return (torch.cat(self.parts[name]) * scale).round().numpy()

        matters = None
        if self.gradients:
            log = torch.cat(self.parts["matters"]).double().clamp_min(1e-300).log10()
            matters = ((log + DECADES) * STEPS + 1).round().clamp(0, 255).numpy().astype(np.uint8)
        return Map(
            keys=all_heads("keys").astype(np.uint16),
            weights=all_heads("weights", 255.0).astype(np.uint8),
            certainty=all_heads("certainty", 255.0).astype(np.uint8),
            matters=matters,
            seen=all_heads("seen").astype(np.uint16),
        )


def _half_seen(call: Call, at: int, named: Bool[Tensor, "heads n"]) -> list[float]:
    """Half the width of the 95 % interval of the weight of named keys, if of the others a random half is seen and stands for
    all: 1.96 times its exact rms error, attention over values 1 for the named and 0 for the others."""
    row = torch.tensor([at], device=call.query.device)
    scores = torch.cat([call.scores(0, head, row) for head in range(call.heads)]).double()
    hidden = scores == -torch.inf
    sink = None if call.sink is None else wide(call.sink).double()
    left = (~hidden & ~named).sum(1)
    rows = ((left > 1) & named.any(1)).nonzero()[:, 0]
    found = [0.0] * call.heads
    if len(rows):
        n = (HALF * left[rows]).floor()[:, None].double()
        seen = Seen(
            scores, named.double()[..., None], hidden if bool(hidden.any()) else None, sink, kept=named
        )[rows]
        ready = prepare_seen(seen, int(n.max()), RANDOM, binned=scores.shape[1] > MODELS_BIN_ABOVE)
        square = ready.moments(n)[0][:, 0].clamp_min(0)
        for head, one in zip(rows.tolist(), square.sqrt().tolist(), strict=True):
            found[head] = float(stats.norm.ppf(0.975)) * one
    return found
