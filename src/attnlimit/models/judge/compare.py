"""Budgets beside what people would use instead, at equal keys, on text that the analysis did not read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from attnlimit.doors import door
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.files.records import write_json
from attnlimit.files.strict import from_record, read_record, record, to_record
from attnlimit.inputs import Count
from attnlimit.models.analyse.analyze import digest
from attnlimit.models.analyse.run import Facts, Run
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Predicted
from attnlimit.models.judge.intervals import Uncertain, averaged
from attnlimit.models.judge.methods import METHODS, OURS, Ground, Plan, methods
from attnlimit.models.judge.trial import checked_seeds, different
from attnlimit.models.see.fields import Counted, Some
from attnlimit.models.see.gradient import CHANGE, answer_error, model_answer
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.progress import Progress, Steps
from attnlimit.models.see.text import Document, token_windows
from attnlimit.numerics.words import counted
from attnlimit.rates.bootstrap import checked_level

SCHEMA = "attnlimit.compare/1"
REMEDY = "`attnlimit compare RUN` makes one."
BEYOND = 1.25
"""How far past its last point a line is drawn on, to compare at equal keys."""


@record
class Point:
    """One method at one share of keys."""

    method: str
    asked: PositiveFloat
    """Share of keys that it was to read."""
    read: PositiveFloat
    """Share that it read: by query head, or by key head where ours shares keys in groups."""
    by_key_head: PositiveFloat | None
    """Share that key heads give, all query heads of a group together; None: the texts are too long to count it."""
    changes: Some[Some[NonNegativeFloat]]
    """What became of the model's answer, by seed and window."""
    predicted: Predicted | None
    """The same before it was tried; None: not known for this method."""

    def measured(self, level: float) -> Uncertain:
        """The mean, with its interval over seeds and windows."""
        return Uncertain(*map(float, averaged(torch.tensor(self.changes, dtype=torch.float64), level)))

    @property
    def value(self) -> float:
        return float(np.mean(self.changes))


@record
class Comparison(Drawn):
    """How far each method changes the model's answer, against the share of keys that it reads."""

    model: str
    run: str
    """What the analysis is known by."""
    unit: str
    tokens: Counted
    windows: Counted
    seeds: Some[int]
    level: PositiveFloat
    points: Some[Point]

    def __post_init__(self) -> None:
        for one in self.points:
            if [*map(len, one.changes)] != [self.windows] * len(self.seeds):
                raise InputError(
                    f"{one.method}: changes must be {counted(self.windows, 'number')}, one a window, for each of {counted(len(self.seeds), 'seed')}."
                )

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.method for one in self.points))

    def of(self, method: str) -> tuple[Point, ...]:
        """A method's points, by the share that they read."""
        return tuple(sorted((one for one in self.points if one.method == method), key=lambda one: one.read))

    @property
    def above(self) -> list[str]:
        """Where ours is not below another method with as many keys, in sentences. Between its points ours is a straight line
        over the logarithms."""
        found = []
        for ours in (one for one in OURS if one in self.methods):
            for one in (one for one in self.points if one.method not in OURS):
                value = self._at(ours, one.read)
                if value >= one.value:
                    found.append(
                        f"At {one.read:.1%} of the keys {one.method} changes the answer by {one.value:.3g} {self.unit}, "
                        f"ours {ours} by {value:.3g}."
                    )
        return found

    def _at(self, method: str, read: float) -> float:
        points = self.of(method)
        x, y = (np.log([max(getattr(one, name), 1e-12) for one in points]) for name in ("read", "value"))
        place = np.log(min(read, BEYOND * points[-1].read))
        if len(x) == 1:
            return float(np.exp(y[0]))
        k = int(np.clip(np.searchsorted(x, place) - 1, 0, len(x) - 2))
        slope = (y[k + 1] - y[k]) / max(x[k + 1] - x[k], 1e-9)
        return float(np.exp(y[k] + slope * (place - x[k])))

    @property
    def verdict(self) -> str:
        """Whether ours is below all others, in words."""
        if not self.above:
            return "With as many keys, ours is below every other method at every point."
        return "Ours is not below every other method at every point. " + " ".join(self.above)

    @property
    def sure(self) -> str:
        """What intervals there are."""
        known = self.windows * len(self.seeds) > 1
        return f"{self.level:.0%} intervals" if known else "one window with one seed gives no intervals"

    @property
    def words(self) -> str:
        """How it was measured."""
        return (
            f"{self.unit}, mean over {counted(self.windows, 'window')} of {self.tokens:,} tokens that the analysis did not "
            f"read and {counted(len(self.seeds), 'seed')}; {self.sure}"
            + ("; keys counted by key head" if OURS[2] in self.methods else "")
        )

    def rows(self) -> list[tuple[str, Point, Uncertain]]:
        """A method, what it did, and how sure that is."""
        return [(one.method, one, one.measured(self.level)) for one in self.points]

    def to_dict(self) -> dict[str, Any]:
        """What the file holds; means and the verdict are there for readers."""
        means = [one.measured(self.level).to_dict() for one in self.points]
        return {"schema": SCHEMA, **to_record(self), "means": means, "verdict": self.verdict}

    def save(self, path: str | Path) -> Path:
        return write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """Read a file that `save` wrote, strictly."""
        return read_record(Path(path), SCHEMA, cls._read, "comparison", REMEDY)

    @classmethod
    def _read(cls, given: dict[str, Any]) -> Comparison:
        fields = {name: value for name, value in given.items() if name not in ("means", "verdict")}
        return from_record(cls, fields, "the file", points=(Point, "point"))

    def __repr__(self) -> str:
        return f"Comparison({self.model}, {len(self.methods)} methods, {len(self.points)} points; {self.verdict})"


@door
def compare(
    loaded: Loaded,
    run: Run,
    texts: Sequence[str | Document],
    *,
    keys: Sequence[float] = (0.05, 0.1, 0.2),
    windows: Count = 4,
    seeds: Sequence[int] = (0,),
    level: float = 0.95,
    progress: Progress | None = None,
) -> Comparison:
    """KL(full ‖ sampled) of the model's answer (for an encoder: the squared change of its embedding) with these shares of
    the keys, for the run's budgets and for other methods (`attnlimit.models.judge.methods`), on windows of text as long as the
    run's that it did not read. Methods that are fitted to a share of keys are fitted on the first window."""
    what = "shares of all keys, above 0 and at most 1"
    shares = sorted(map(float, different(keys, lambda one: 0 < one <= 1, "keys", what)))
    seeds, level, unit = checked_seeds(seeds), checked_level(level), _unit(loaded, run)
    run.budgets(keys=shares[-1], split="answer").check_fits(loaded.model)
    found = held_out(loaded, run, texts, windows)
    ground = Ground(loaded, run, found[0])
    grouped = run.answer is not None and run.answer.group > 1
    asked = [(name, share) for name in methods(grouped) for share in shares]
    steps = Steps(progress, len(asked) * (1 + len(found) * len(seeds)))
    tallies = []
    for name, share in asked:
        tallies.append(_Tally(METHODS[name](ground, share), seeds))
        steps.skip(1)
    for ids in found.to(loaded.device).split(1):
        with torch.no_grad():
            full = model_answer(loaded, ids)
        for tally in tallies:
            for seed in range(len(seeds)):
                tally.add(loaded, ids, full, seed)
                steps.skip(1)
    points = tuple(one.point(name, share, grouped) for (name, share), one in zip(asked, tallies, strict=True))
    facts = run.facts
    return Comparison(facts.model, known_by(facts), unit, facts.tokens, len(found), seeds, level, points)


def known_by(facts: Facts) -> str:
    """What tells an analysis from others."""
    told = {
        name: one for name, one in to_record(facts).items() if name != "weights" or one
    }  # older ones have none
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def held_out(
    loaded: Loaded, run: Run, texts: Sequence[str | Document], windows: int
) -> Int[Tensor, "windows tokens"]:
    """Windows that the analysis did not read: the first ones were its own, if the texts are the same."""
    facts = run.facts
    found = token_windows(loaded.need_tokenizer(), texts, facts.tokens, most=facts.passages + windows)
    if facts.text.endswith(digest(found[: facts.passages])):
        found = found[facts.passages :]
    if not len(found):
        raise InputError(
            f"The analysis read all {facts.passages} windows of {facts.tokens} tokens that these texts have, so none is left to "
            "compare methods on: give other texts or more of them (--text), or analyse fewer passages."
        )
    return found[:windows]


class _Tally:
    """What a plan does, by seed and window, and the keys that it reads, sees and takes from key heads."""

    def __init__(self, plan: Plan, seeds: Sequence[int]) -> None:
        self.plan, self.keys = plan, [0.0, 0.0, 0.0]
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.changes: list[list[float]] = [[] for _ in seeds]

    def add(self, loaded: Loaded, ids: Int[Tensor, "1 tokens"], full: Tensor, seed: int) -> None:
        plan, first = self.plan, self.changes[0]
        if seed and not plan.draws:  # nothing is left to chance
            self.changes[seed].append(first[-1])
            return
        generator = self.generators[seed]
        sampling = sampled_attention(loaded.model, plan.budgets, generator=generator, sizes=plan.sizes)
        with torch.no_grad(), sampling as attended:
            self.changes[seed].append(answer_error(full, model_answer(loaded, ids)))
        parts = (attended.keys, attended.seen, attended.group)
        self.keys = [total + float(part.sum()) for total, part in zip(self.keys, parts, strict=True)]

    def point(self, name: str, share: float, grouped: bool) -> Point:
        read, seen, group = self.keys
        by_key_head = group / seen if group == group else None
        counted = by_key_head if grouped and by_key_head is not None else read / seen
        changes, predicted = tuple(map(tuple, self.changes)), self.plan.budgets.predicted
        return Point(name, share, counted, by_key_head, changes, predicted)


def _unit(loaded: Loaded, run: Run) -> str:
    if run.answer is not None and loaded.kind != run.facts.kind:
        raise InputError(
            f"The run is of a model of kind {run.facts.kind!r}, but {loaded.name!r} is of kind {loaded.kind!r}: load it "
            f"with task={run.facts.kind!r}."
        )
    if loaded.kind == "encoder":
        return CHANGE
    return "nats a text" if loaded.kind == "classifier" else "nats a token"
