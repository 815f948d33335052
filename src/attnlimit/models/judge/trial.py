"""How a model is tried: on which examples of its task, and with which draws of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.models.attend.sampled import sampled_attention
from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.judge.tasks import Task, TaskResult, TaskRun, task_for
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.progress import Progress, Steps
from attnlimit.models.see.text import Document, as_documents, longest
from attnlimit.rates.bootstrap import checked_level

DEFAULT_TOKENS = 256


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
        return TaskRun(loaded.model, tokenizer, as_documents(texts), length, most, self.batch, progress)

    def evaluate(
        self, loaded: Loaded, texts: Sequence[str | Document], progress: Progress | None = None
    ) -> TaskResult:
        """The task's metric, with whatever attention the model has now."""
        return self.task_of(loaded).evaluate(self.run(loaded, texts, progress))

    def sampled(
        self, loaded: Loaded, budgets: Budgets, texts: Sequence[str | Document], steps: Steps
    ) -> tuple[TaskResult, ...]:
        """The task's metric with budgets, once for each seed."""
        found = []
        for seed in self.seeds:
            with sampled_attention(loaded.model, budgets, generator=seed, per_query=self.per_query):
                found.append(self.evaluate(loaded, texts, steps.next()))
        return tuple(found)


def checked_seeds(seeds: object) -> tuple[int, ...]:
    """At least one seed, none twice: a repeated seed is no second run."""
    listed: tuple[int, ...] = (
        tuple(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else ()
    )
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in listed)
    if not listed or not whole or len(set(listed)) < len(listed):
        raise InputError(f"seeds must be one or several different whole numbers, got {seeds!r}.")
    return listed
