"""Ways to read a share of a model's keys: attnlimit's budgets, and what people would use instead."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.designs.by_query import rest_spread
from attnlimit.designs.denominator import Denominator
from attnlimit.errors import InputError
from attnlimit.models.analyse.run import Run
from attnlimit.models.attend.dense import Sizes
from attnlimit.models.attend.sampled import Attended, sampled_attention
from attnlimit.models.budget.answer import BASE
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.see.load import Loaded, run_backbone

PLACED = 0.025
"""Of the text's length: what vAttention keeps at most as a window, and as much again of largest score."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What sampled attention takes."""

    budgets: Budgets
    sizes: Sizes | None = None

    @property
    def draws(self) -> bool:
        """Whether chance plays a part."""
        return self.sizes is not None or any(one.n for one in self.budgets.entries)


@dataclass(frozen=True, eq=False)
class Ground:
    """What methods are fitted on, so that they read the share of keys asked for: the run, and the full model on one text."""

    loaded: Loaded
    run: Run
    ids: Int[Tensor, " tokens"]

    def alike(self, kept: Kept) -> Budgets:
        """The same kept keys in every head, and no others."""
        layers, heads = self.run.shape
        sampling = Sampling(draw=Different(), kept=kept, weight="rest")
        return Budgets.uniform([heads] * layers, 0, sampling, model=self.run.facts.model)

    def look(self, kept: Kept, see: Callable[[Tensor, Tensor], None]) -> Attended:
        """Show the softmax weights of all queries, and what they do not keep, to a function; the model is the full one."""

        def everything(weights: Tensor, rest: Tensor) -> Tensor:
            see(weights, rest)
            return rest.sum(-1, keepdim=True)

        sampling = sampled_attention(self.loaded.model, self.alike(kept), sizes=everything)
        with torch.no_grad(), sampling as attended:
            run_backbone(self.loaded, input_ids=self.ids[None].to(self.loaded.device))
        return attended

    @cached_property
    def by_top(self) -> Float[Tensor, " keys"]:
        """The share of keys that is read with 0, 1, 2, … of largest score beside own token and sinks."""
        new = torch.zeros(len(self.ids) + 1, dtype=torch.float64)

        def see(weights: Tensor, rest: Tensor) -> None:
            ranked = rest.gather(-1, weights.argsort(-1, descending=True))
            new[1 : 1 + ranked.shape[-1]] += ranked.flatten(0, -2).sum(0).cpu()

        seen = self.look(BASE, see).seen.sum()
        return (seen - new.sum() + new.cumsum(0)) / seen

    @property
    def visible(self) -> float:
        """Keys that a query sees, mean over a text."""
        length = len(self.ids)
        return (length + 1) / 2 if self.run.facts.causal else float(length)

    def near(self, size: int, top: int = 0) -> Kept:
        """Own token, sinks, top keys and a window: of the last tokens where queries look back only, else around them."""
        back = self.run.facts.causal
        return replace(BASE, top=top, window=size if back else 0, around=0 if back else size)

    def placed(self, size: int) -> float:
        """The share of keys in such a window and the sinks."""
        length = len(self.ids)
        seen = torch.ones(length, length, dtype=torch.bool)
        seen = seen.tril() if self.run.facts.causal else seen
        return float((self.near(size).by_place(length, torch.arange(length)) & seen).sum() / seen.sum())


def top_k(ground: Ground, share: float) -> Plan:
    """The keys of largest score, own token and sinks."""
    top = int((ground.by_top <= share).sum()) - 1
    return Plan(ground.alike(replace(BASE, top=max(1, top))))


def window(ground: Ground, share: float) -> Plan:
    """The nearest keys and sinks."""
    size = bisect_right(range(1, len(ground.ids) + 1), share, key=ground.placed)
    return Plan(ground.alike(ground.near(max(1, size))))


def denominator(ground: Ground, share: float) -> Plan:
    """Sinks, a window, top keys, and as many drawn keys as the softmax denominator asks for: vAttention's rule. Of what
    is read at most a quarter is window, and a quarter top keys."""
    part = round(min(PLACED * len(ground.ids), share * ground.visible / 4))
    kept, found = ground.near(part, top=part), []

    def see(weights: Tensor, rest: Tensor) -> None:
        found.append(torch.stack(rest_spread(weights, rest)).flatten(1).cpu())

    seen = float(ground.look(kept, see).seen.sum())
    number, width = torch.cat(found, 1)
    room = share * seen - (seen - float(number.double().sum()))
    low, high = -20.0, 20.0
    for _ in range(50):  # a larger error takes fewer keys
        middle = (low + high) / 2
        enough = float(Denominator(exp(middle)).drawn(number, width).sum()) <= room
        low, high = (low, middle) if enough else (middle, high)
    return Plan(ground.alike(kept), Denominator(exp(high)))


def heads_errors(ground: Ground, share: float) -> Plan:
    """The keys split so that the heads' own errors are least. The run has these at late queries, which see many keys, so
    that whole texts take a larger share than it says: less is asked for."""
    run, low, high, best = ground.run, 0.0, share, None
    for _ in range(6):
        middle = (low + high) / 2
        try:
            budgets = run.budgets(keys=middle, split="output")
        except InputError:
            low = middle
            continue
        if budgets.cost([run.facts.tokens]).share <= share:
            low, best = middle, budgets
        else:
            high = middle
    return Plan(best or run.budgets(keys=share, split="output"))


OURS = ("by head and query", "by head", "by key head")
METHODS: dict[str, Callable[[Ground, float], Plan]] = {
    OURS[0]: lambda ground, share: Plan(ground.run.budgets(keys=share)),
    OURS[1]: lambda ground, share: Plan(ground.run.budgets(keys=share, policy="head")),
    OURS[2]: lambda ground, share: Plan(ground.run.budgets(keys=share)),
    "one design": lambda ground, share: Plan(ground.run.budgets(keys=share, policy="same")),
    "split by heads' errors": heads_errors,
    "vAttention's rule": denominator,
    "top-k": top_k,
    "sinks + window": window,
}
"""From a share of keys to what reads it."""


def methods(grouped: bool) -> tuple[str, ...]:
    """Those to compare: of ours, the ones whose heads read their own keys, or those whose groups of heads share them."""
    return tuple(name for name in METHODS if name not in OURS or (name == OURS[2]) == grouped)
