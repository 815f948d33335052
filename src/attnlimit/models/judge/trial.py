"""How a model is tried: on which examples of its task, and with which draws of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.files.records import Recorded
from attnlimit.models.attend.sampled import Attended, sampled_attention
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.judge.intervals import Uncertain, averaged
from attnlimit.models.judge.tasks import Task, TaskResult, TaskRun, task_for
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.progress import Progress, Steps, unheard
from attnlimit.models.see.text import Document, as_documents, longest
from attnlimit.rates.bootstrap import checked_level

DEFAULT_TOKENS = 256
SOLVED = 0.5
"""Share of examples that the full model must get right: a task that it cannot do says nothing about budgets."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tried(Recorded):
    """A task with all keys and, if the full model solves it, with budgets."""

    also = ("name", "solved", "verdict")
    full: TaskResult
    sampled: tuple[TaskResult, ...] = ()
    """One a seed; none where the full model does not solve the task."""
    sampled_value: Uncertain | None = None
    drop: Uncertain | None = None
    """What is lost of the metric: full − sampled, or sampled/full − 1 for perplexity."""

    @property
    def name(self) -> str:
        return self.full.name

    @property
    def solved(self) -> bool:
        return self.full.value >= SOLVED

    @property
    def verdict(self) -> str:
        """What the task says about the budgets, in words."""
        if not self.solved:
            return f"not solved by the full model (score {self.full.value:.2f}): says nothing about budgets"
        return f"{self.full.value:.2f} with all keys, {self.sampled_value!r} sampled; loss {self.drop!r}"


@door
@dataclass(frozen=True, kw_only=True)
class Trial:
    """Examples of at most `tokens` tokens, and one sampled run for each seed."""

    tokens: int | None = None
    """None: 256, or what budgets were made for."""
    examples: int | None = None
    """None: 32 texts to tell apart, 64 windows, 32 needles, or all labelled texts."""
    task: Task | None = None
    """None: what the model was made for."""
    batch: int = 16
    seeds: Sequence[int] = (0, 1, 2)
    per_query: bool = True
    """Keys drawn for each query, or once for the whole text."""
    level: float = 0.95
    """Of intervals, which come from resampling seeds and examples together."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", checked_seeds(self.seeds))
        checked_level(self.level)

    def length(self, loaded: Loaded) -> int:
        """Tokens of an example."""
        return longest(loaded.model, DEFAULT_TOKENS if self.tokens is None else self.tokens)

    def task_of(self, loaded: Loaded) -> Task:
        """The task, if it is for this kind of model."""
        task = task_for(loaded) if self.task is None else self.task
        if task.only not in (None, loaded.kind):
            raise InputError(
                f"The task {task.name!r} is for models of kind {task.only!r}, but {loaded.name!r} is of kind "
                f"{loaded.kind!r}: leave it out, or load the model with task={task.only!r} if it was trained as one."
            )
        return task

    def run(
        self, loaded: Loaded, texts: Sequence[str | Document], progress: Progress | None = None
    ) -> TaskRun:
        """How the task goes through these texts."""
        tokenizer, length = loaded.need_tokenizer(), self.length(loaded)
        most = self.task_of(loaded).enough if self.examples is None else self.examples
        documents, tell = as_documents(texts), progress or unheard
        return TaskRun(loaded.model, tokenizer, documents, length, most, self.batch, tell)

    def evaluate(
        self, loaded: Loaded, texts: Sequence[str | Document], progress: Progress | None = None
    ) -> TaskResult:
        """The task's metric, with whatever attention the model has now."""
        return self.task_of(loaded).evaluate(self.run(loaded, texts, progress))

    def sampled(
        self, loaded: Loaded, budgets: Budgets, texts: Sequence[str | Document], steps: Steps
    ) -> tuple[tuple[TaskResult, ...], Attended]:
        """The task's metric with budgets, once for each seed, and what was read with the last one."""
        found = []
        for seed in self.seeds:
            sampling = sampled_attention(loaded.model, budgets, generator=seed, per_query=self.per_query)
            with sampling as attended:
                found.append(self.evaluate(loaded, texts, steps.next()))
        return tuple(found), attended

    def tried(
        self,
        loaded: Loaded,
        budgets: Budgets,
        texts: Sequence[str | Document],
        steps: Steps,
        least: float = -torch.inf,
    ) -> Tried:
        """The task with all keys, and with budgets if the full model reaches the `least` of its metric."""
        full = self.evaluate(loaded, texts, steps.next())
        if full.value < least:
            steps.skip(len(self.seeds))
            return Tried(full=full)
        sampled, _ = self.sampled(loaded, budgets, texts, steps)
        value, drop = compared(full, sampled, self.level)
        return Tried(full=full, sampled=sampled, sampled_value=value, drop=drop)


def compared(full: TaskResult, sampled: Sequence[TaskResult], level: float) -> tuple[Uncertain, Uncertain]:
    """The metric over seeds, and what is lost of it, by a bootstrap in which every example stays paired."""
    cells = torch.stack([one.per_example for one in sampled])
    both = torch.stack([cells, full.per_example.expand_as(cells)], -1)

    def lost(pair: Tensor) -> Tensor:
        if full.logarithmic:
            return (pair[..., 0] - pair[..., 1]).exp() - 1
        return pair[..., 1] - pair[..., 0] if full.higher_is_better else pair[..., 0] - pair[..., 1]

    value = averaged(both, level, lambda pair: full.metric(pair[..., 0]))
    return Uncertain(*map(float, value)), Uncertain(*map(float, averaged(both, level, lost)))


def checked_seeds(seeds: object) -> tuple[int, ...]:
    """At least one seed, none twice: a repeated seed is no second run."""
    return different(seeds, lambda seed: isinstance(seed, int), "seeds", "whole numbers")


def different(given: object, good: Callable[[Any], bool], name: str, what: str) -> tuple[Any, ...]:
    """At least one of what is good, and none twice."""
    listed = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    fine = all(good(one) and not isinstance(one, bool) for one in listed)
    if not listed or not fine or len(set(listed)) < len(listed):
        raise InputError(f"{name} must be one or several different {what}, got {given!r}.")
    return listed
