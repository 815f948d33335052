"""What sampling a head's keys does to the model's answer, and the cheapest keys for all heads.

Errors of different heads and queries are independent where each draws its own keys, so to second order the answer's error
is a sum over heads of means over queries (attnlimit.models.see.gradient). An `Answer` has each term, exactly, for every kept
set of a space and n in steps; a budget is chosen by a price λ of a key: each head takes what makes error + λ·keys least.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.designs.by_query import FEWEST, TOPS, choose
from attnlimit.errors import InputError
from attnlimit.files.tensors import read_tensors, write_tensors
from attnlimit.models.budget.budgets import HeadBudget, Predicted

BASE = Kept(own=True, sinks=4)
SPACE = (
    *(replace(BASE, top=top) for top in TOPS),
    *(replace(BASE, window=16, top=top) for top in (0, 16, 64)),
    *(replace(BASE, window=64, top=top) for top in (0, 64)),
    Kept(),
)
"""What a head may keep; the first `len(TOPS)`, all at the same places, are what a query may choose from."""
SPACE_WORDS = f"nothing kept, or own token, 4 sinks, window of 0, 16 or 64, top {TOPS[0]} to {TOPS[-1]}; drawn keys by head or by query"
FOLLOWING = HeadBudget(0, 0, Sampling(draw=Different(), kept=BASE, weight="rest"), FEWEST, by_query=1.0)
PRICES = 44
PARTS = 8
RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Answer:
    """What each head adds to the answer's error, by query, kept set of `SPACE` and share n/R of the rest that is drawn."""

    unit: str
    squares: Float[Tensor, "layers heads queries sets shares"]
    """Its mean over queries is the head's term. nan: less than one key."""
    share: Float[Tensor, " shares"]
    """2^{−½}, ½, ¼, …"""
    alone: Float[Tensor, "layers heads queries sets"]
    """The same with nothing drawn: the squared bias, times what biases are together (not independent) over their sum."""
    rest: Float[Tensor, "layers heads queries sets"]
    spread: Float[Tensor, "layers heads queries sets"]
    """As attnlimit.designs.by_query defines it."""
    seen: Float[Tensor, "layers heads queries"]
    """Keys that a query sees; 0 where there is no head."""
    passage: Int[Tensor, " queries"]
    """The text that each query is of."""
    weight: Float[Tensor, " queries"]
    """What each query counts for: those with large errors are drawn more often, and count for less."""
    trials: Float[Tensor, "trials 2 passages"] = field(
        default_factory=lambda: torch.empty(0, 2, 1, dtype=torch.float64)
    )
    """Errors of the answer that were predicted of each passage, from small to large, and what became of them."""
    group: int = 1
    """Heads that keep and draw together; with more than one, `heads` counts groups."""

    def __post_init__(self) -> None:
        level = self.squares * (self.share / (1 - self.share)).to(self.squares)
        for k in range(1, level.shape[-1]):  # less than one key is never drawn
            level[..., k] = torch.where(level[..., k].isnan(), level[..., k - 1], level[..., k])
        object.__setattr__(self, "_level", level.clamp_min(1e-30).log())

    _level: Tensor = field(init=False, repr=False)

    def of_head(self, kept: int, n: int) -> tuple[Tensor, Tensor]:
        """Errors and keys read, by query, with the same kept set and n in every head."""
        rest = self.rest[..., kept]
        if n == 0:
            return self.alone[..., kept], self.seen - rest
        drawn = rest.clamp_max(n)
        return self._errors(self._level[..., kept, :], rest, drawn), self.seen - rest + drawn

    def of_query(self, per_spread: float | Tensor) -> tuple[Tensor, Tensor]:
        """The same with kept sets and n that follow the queries."""
        some = slice(len(TOPS))
        kept = self.seen[..., None] - self.rest[..., some]
        chosen, n = choose(per_spread, self.spread[..., some], self.rest[..., some], kept)
        picked = chosen[..., None].expand(*chosen.shape, len(self.share))
        level, rest = self._level.gather(-2, picked)[..., 0, :], self.rest.gather(-1, chosen)[..., 0]
        return self._errors(level, rest, n[..., 0]), self.seen - rest + n[..., 0]

    def _errors(
        self, level: Float[Tensor, "*q shares"], rest: Float[Tensor, "*q"], n: Float[Tensor, "*q"]
    ) -> Float[Tensor, "*q"]:
        """With n of the rest drawn. Between shares, e·n/(R − n), whose logarithm is the level, is a power of n."""
        share = n / rest.clamp_min(1)
        octave, last = -share.clamp(1e-12, 1.0).log2(), len(self.share) - 1
        low = torch.where(octave < 1, 0, octave.floor().long()).clamp_max(max(last - 1, 0))
        start, width = torch.where(low == 0, 0.5, low.to(octave)), torch.where(low == 0, 0.5, 1.0)
        part = ((octave - start) / width).clamp(0, 1)
        a = level.gather(-1, low[..., None])[..., 0]
        b = level.gather(-1, (low + 1).clamp_max(last)[..., None])[..., 0]
        error = (a + part * (b - a)).exp() * (1 / share.clamp_min(1e-12) - 1)
        return error.masked_fill((share >= 1) | (rest <= 0), 0.0)

    # --- budgets ----------------------------------------------------------------------------------

    def options(self, by_query: bool = True, drawn: bool = True) -> Options:
        """What each head may do, with its error and its keys: follow its queries (a group of heads cannot), draw keys,
        keep some, read all."""
        most, by_query = int(self.rest.max()), by_query and drawn and self.group == 1
        sizes = sorted({round(FEWEST * 2 ** (k / 3)) for k in range(3 * 40) if FEWEST * 2 ** (k / 3) < most})
        # full attention comes first: it is what an n that happens to read all keys of these queries stands for
        found = [(HeadBudget(0, 0, n=None), (torch.zeros_like(self.seen), self.seen))]
        found += [
            (
                HeadBudget(0, 0, Sampling(draw=Different(), kept=kept, weight="rest"), n),
                self.of_head(place, n),
            )
            for place, kept in enumerate(SPACE)
            for n in (*((0,) if kept else ()), *((sizes or [FEWEST]) if drawn else ()))
        ]
        # keys drawn per unit of spread, in units of each head's own: all keys at its widest query
        unit = most / self.spread.amax((2, 3)).double().clamp_min(1e-30)
        for k in range(48 if by_query else 0):
            factor = 2 ** (k / 4 - 7)
            found.append((replace(FOLLOWING, by_query=factor), self.of_query(factor * unit[..., None, None])))
        kinds, pairs = zip(*found, strict=True)
        errors, keys = (torch.stack([one[k].float() for one in pairs], -1) for k in (0, 1))
        count = self.weight.to(errors)[:, None]
        return Options(kinds, unit, errors.mul_(count), keys.mul_(count / count.mean()), self)

    def terms(self, entries: Sequence[HeadBudget]) -> tuple[Tensor, Tensor]:
        """Errors and keys by layer, head (or group) and query, of one budget a head; `entries` by layer, then head. Each counts as its
        query does, so that their plain means are those over the text."""
        errors, keys = torch.zeros_like(self.seen), self.seen.clone()
        for one in entries:
            layer, head = one.layer, one.head // self.group
            if one.n is None or one.head % self.group or not bool((self.seen[layer, head] > 0).any()):
                continue
            here = self.part((slice(layer, layer + 1), slice(head, head + 1)))
            place = _place(one)
            pair = here.of_head(place, one.n) if one.by_query is None else here.of_query(one.by_query)
            errors[layer, head], keys[layer, head] = pair[0][0, 0], pair[1][0, 0]
        return errors * self.weight.to(errors), self.counted(keys)

    def counted(self, keys: Float[Tensor, "... queries"]) -> Float[Tensor, "... queries"]:
        """Keys of queries, each as often as it counts among all."""
        return keys * (self.weight / self.weight.mean()).to(keys)

    @property
    def visible(self) -> Float[Tensor, "layers heads"]:
        """Keys that a query sees, in the mean."""
        return self.counted(self.seen).mean(2, dtype=torch.float64)

    def part(self, here: tuple[slice | Tensor, ...]) -> Answer:
        """Some layers, heads and queries of it."""
        parts = {name: getattr(self, name)[here] for name in ("squares", "alone", "rest", "spread", "seen")}
        if len(here) > 2:
            parts |= {name: getattr(self, name)[here[2]] for name in ("passage", "weight")}
        return replace(self, **parts)

    def of_passages(self, some: Bool[Tensor, " passages"]) -> Answer:
        """The queries of some passages."""
        return self.part((slice(None), slice(None), some[self.passage]))

    def by_passage(self, entries: Sequence[HeadBudget]) -> Float[Tensor, " passages"]:
        """The sum of the heads' terms in each of them."""
        return self._by_passage(self.terms(entries)[0].sum((0, 1)).double())

    def _by_passage(self, by_query: Float[Tensor, " queries"]) -> Float[Tensor, " passages"]:
        return torch.stack([by_query[self.passage == one].mean() for one in self.passage.unique()])

    def predict(self, entries: Sequence[HeadBudget]) -> Predicted:
        """The answer's error under these budgets, which were not chosen on these very queries, with its interval."""
        errors, _ = self.terms(entries)
        return self.interval(errors.sum((0, 1)).double())

    def interval(self, by_query: Float[Tensor, " queries"], level: float = 0.95) -> Predicted:
        """What the queries say, times what became of such errors in trials. As sure as three passages or more agree, each with what
        became of it (a t interval, whose upper end counts from their mean), else as passages drawn anew and queries in each of them."""
        value = float(by_query.mean())
        factor, ratio = self.factor(value), self._found_over_predicted(value)
        if len(ratio) > 2:
            lost = ratio * self._by_passage(by_query)[: len(ratio)]
            mean = float(lost.mean())
            quantile = float(scipy.special.stdtrit(len(lost) - 1, (1 + level) / 2))
            wide = math.exp(quantile * float(lost.std()) / max(mean, 1e-300) / len(lost) ** 0.5)
            low, high = factor * value / wide, max(factor * value, mean) * wide
        else:
            low, high = (factor * end for end in self._redrawn(by_query, level))
        return Predicted(factor * value, min(low, factor * value), max(high, factor * value), self.unit)

    def _redrawn(self, by_query: Float[Tensor, " queries"], level: float) -> tuple[float, float]:
        generator = torch.Generator().manual_seed(0)
        groups = [by_query[self.passage == one] for one in self.passage.unique()]
        means = torch.stack(
            [
                one[torch.randint(len(one), (RESAMPLES, len(one)), generator=generator)].mean(1)
                for one in groups
            ]
        )
        weight = torch.tensor([float(len(one)) for one in groups], dtype=torch.float64)
        picked = torch.randint(len(groups), (RESAMPLES, len(groups)), generator=generator)
        totals = (means.T.gather(1, picked) * weight[picked]).sum(1) / weight[picked].sum(1)
        tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        low, high = totals.quantile(tail).tolist()
        return low, high

    def factor(self, error: float) -> float:
        """What errors of this size turned out to be in a typical passage, over the sum of the heads' terms there: few passages
        lose far more than is predicted, and say nothing of the others."""
        found = self._found_over_predicted(error)
        return float(found.quantile(0.5)) if len(found) else 1.0

    def _found_over_predicted(self, error: float) -> Float[Tensor, " passages"]:
        """In each passage: between the trials on a logarithm of the error, beyond them as at the last; nothing without trials."""
        if not len(self.trials) or error <= 0:
            return torch.empty(0, dtype=torch.float64)
        predicted, found = self.trials.unbind(1)
        places, ratio = predicted.mean(1).log().tolist(), (found / predicted.clamp_min(1e-30)).T.numpy()
        return torch.tensor([np.interp(math.log(error), places, one) for one in ratio], dtype=torch.float64)

    # --- files ------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        tensors = {name: getattr(self, name) for name in ARRAYS}
        write_tensors(path, tensors, {"unit": self.unit, "group": str(self.group)})

    @classmethod
    def load(cls, path: Path) -> Answer:
        """From its file, whose arrays must fit together."""
        try:
            tensors, known = read_tensors(path)
            found = {name: tensors[name] for name in ARRAYS}
        except (InputError, KeyError) as problem:
            raise InputError(
                f"{path} cannot be read, so nothing is known of the model's answer: analyse again."
            ) from problem
        group, ends = known.get("group", ""), [found[name].ndim for name in ("seen", "share", "trials")]
        fits = re.fullmatch("[1-9][0-9]{0,8}", group) and ends == [3, 1, 3] and not _misfits(found)
        if not fits or not all(_measured(name, found) for name in ARRAYS):
            raise InputError(f"{path} is of another version, or was edited: analyse again.")
        return cls(known.get("unit", ""), **found, group=int(group))


ARRAYS = ("squares", "share", "alone", "rest", "spread", "seen", "passage", "weight", "trials")


def _misfits(found: dict[str, Tensor]) -> bool:
    """Whether arrays do not fit together, or are empty."""
    places, sets, sizes = found["seen"].shape, len(SPACE), len(found["share"])
    shapes = {
        "squares": (*places, sets, sizes), "alone": (*places, sets), "rest": (*places, sets), "spread": (*places, sets),
        "passage": places[-1:], "weight": places[-1:], "trials": (len(found["trials"]), 2, found["trials"].shape[-1]),
    }  # fmt: skip
    return 0 in shapes["squares"] or any(tuple(found[name].shape) != shape for name, shape in shapes.items())


def _measured(name: str, found: dict[str, Tensor]) -> bool:
    """Whether its numbers can have been measured: finite, not negative, shares below 1, and no fewer keys seen than left to draw."""
    one, rest, seen = found[name], found["rest"], found["seen"][..., None]
    if name == "squares":
        one = one.where(rest[..., None] * found["share"] > 1, 0)  # nan: less than one key
    limits: dict[str, Tensor | float] = {"share": 1.0, "rest": seen}
    most = torch.as_tensor(limits.get(name, math.inf))
    whole = not one.is_floating_point()
    return whole == (name == "passage") and bool(((one >= 0) & one.isfinite() & (one <= most)).all())


@dataclass(frozen=True, eq=False)
class Options:
    """What the heads may do, the same list for all, and what each query makes of it.

    A choice that is best on some queries is less good on others. So its error is predicted for queries that it was not made
    on: the queries are parted, and each part judges what the others choose at the same price.
    """

    budgets: tuple[HeadBudget, ...]
    unit: Float[Tensor, "layers heads"]
    """What their `by_query` is to be multiplied by."""
    error: Float[Tensor, "layers heads queries options"]
    keys: Float[Tensor, "layers heads queries options"]
    answer: Answer

    def only(self, allowed: Callable[[HeadBudget], bool]) -> Options:
        """Some of the options."""
        some = [place for place, one in enumerate(self.budgets) if allowed(one)]
        kinds = tuple(self.budgets[place] for place in some)
        return replace(self, budgets=kinds, error=self.error[..., some], keys=self.keys[..., some])

    def cheapest(self, *, error: float | None = None, keys: float | None = None) -> Chosen:
        """The fewest keys with at most this error of all heads together, or the least error with at most these keys.

        An error that no price is sure of takes full attention."""
        mean_error, mean_keys = self._means
        low, high = math.log(1e-30), math.log(1e10)
        found: float | None = None
        for _ in range(PRICES):  # a higher price takes fewer keys and makes a larger error
            middle = (low + high) / 2
            best = self._best(middle, mean_error, mean_keys)
            if (
                error is not None
            ):  # by others as by the queries themselves: few of them may say nothing of one another
                own = float(mean_error.gather(-1, best).sum())
                worst = max(own, self._total(self._judged(middle)))
                enough = worst * self.answer.factor(worst) <= error
            else:
                enough = float(mean_keys.gather(-1, best).sum()) > (keys or 0)
            low, high = (middle, high) if enough else (low, middle)
            if enough == (error is not None):
                found = middle
        if found is None and error is not None:
            full = next(place for place, one in enumerate(self.budgets) if one.n is None)
            places = torch.full(self.error.shape[:2], full)
            return self._chosen(places, torch.zeros(self.error.shape[:-1]))
        if found is None:
            least = float(mean_keys.amin(-1).sum())
            raise InputError(
                f"A total of {keys or 0:,.0f} keys is too small: all heads together read at least {least:,.0f}, what they "
                "keep and draw at the least. Give more."
            )
        best, judged = self._best(found, mean_error, mean_keys), self._judged(found)
        return self._chosen(best[..., 0], judged)

    def same(self, *, error: float | None = None, keys: float | None = None) -> Chosen:
        """The same for one option that all heads take, by head alone."""
        errors, reads = (part.sum((0, 1)) for part in self._means)
        fits, cost = (reads <= (keys or 0.0), errors) if error is None else (errors <= error, reads)
        fits = fits & torch.tensor([one.by_query is None for one in self.budgets])
        if not bool(fits.any()):
            raise InputError(
                f"A total of {keys or 0:,.0f} keys is too small: one design for all heads reads at least {float(reads.min()):,.0f}. "
                "Give more."
            )
        best = cost.masked_fill(~fits, torch.inf).argmin()
        return self._chosen(best.expand(self.error.shape[:2]), self.error[..., int(best)])

    def _chosen(
        self, places: Int[Tensor, "layers heads"], judged: Float[Tensor, "layers heads queries"]
    ) -> Chosen:
        read = self._means[1].gather(-1, places[..., None])[..., 0]
        predicted, group = self.answer.interval(judged.double().sum((0, 1))), self.answer.group
        added = judged.double().mean(2)
        added *= predicted.value / max(float(added.sum()), 1e-300) / group
        entries = [
            replace(
                self._budget(place, layer, of, float(read[layer, of]), float(added[layer, of])),
                head=of * group + k,
            )
            for layer, row in enumerate(places.tolist())
            for of, place in enumerate(row)
            for k in range(group)
        ]
        return Chosen(tuple(entries), predicted)

    @staticmethod
    def _total(judged: Float[Tensor, "layers heads queries"]) -> float:
        return float(judged.double().sum((0, 1)).mean())

    @cached_property
    def _visible(self) -> Float[Tensor, "layers heads"]:
        return self.answer.visible

    @cached_property
    def _means(self) -> tuple[Tensor, Tensor]:
        return self.error.mean(2, dtype=torch.float64), self.keys.mean(2, dtype=torch.float64)

    @cached_property
    def _parts(self) -> list[tuple[slice, Tensor, Tensor]]:
        """Of each part of the queries: its places, and the means of error and keys over the others."""
        queries = self.error.shape[2]
        places = [slice(one, None, PARTS) for one in range(min(PARTS, queries))]
        if len(places) == 1:
            return [(places[0], *self._means)]

        def others(values: Tensor) -> list[Tensor]:
            sums = [values[:, :, place].sum(2, dtype=torch.float64) for place in places]
            return [
                torch.stack(sums[:k] + sums[k + 1 :]).sum(0) / (queries - len(range(queries)[place]))
                for k, place in enumerate(places)
            ]

        return list(zip(places, others(self.error), others(self.keys), strict=True))

    def _judged(self, price: float) -> Float[Tensor, "layers heads queries"]:
        """Errors of queries with what the other parts choose."""
        found = torch.zeros(self.error.shape[:-1])
        for place, error, keys in self._parts:
            best = self._best(price, error, keys)
            part = self.error[:, :, place]
            found[:, :, place] = part.gather(-1, best[:, :, None].expand(-1, -1, part.shape[2], -1))[..., 0]
        return found

    @staticmethod
    def _best(price: float, error: Tensor, keys: Tensor) -> Int[Tensor, "layers heads 1"]:
        return torch.add(error, keys, alpha=math.exp(price)).argmin(-1, keepdim=True)

    def _budget(self, place: int, layer: int, head: int, keys: float, answer: float) -> HeadBudget:
        one = self.budgets[place]
        follow = None if one.by_query is None else one.by_query * float(self.unit[layer, head])
        seen = float(self._visible[layer, head])
        return replace(
            one, layer=layer, head=head, by_query=follow, keys=keys, visible_keys=seen, answer=answer
        )


@dataclass(frozen=True, eq=False)
class Chosen:
    """A budget for every head, and what they do to the answer."""

    entries: tuple[HeadBudget, ...]
    predicted: Predicted


def _place(one: HeadBudget) -> int:
    space = SPACE if one.by_query is None else (BASE,)
    if one.sampling.kept not in space or one.sampling.weight != "rest":
        raise InputError(
            f"Layer {one.layer}, head {one.head} reads {one.sampling}, n = {one.n}, which the analysis has no errors for: it "
            f"knows {SPACE_WORDS}, at least one drawn key, weighing for all the rest (by query beside {BASE})."
        )
    return SPACE.index(one.sampling.kept)
