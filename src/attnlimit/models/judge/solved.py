"""Needle tasks under budgets, where the full model solves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnlimit.models.budget.budgets import Budgets
from attnlimit.models.judge.intervals import Uncertain, compared
from attnlimit.models.judge.tasks import TaskResult
from attnlimit.models.judge.trial import Trial
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.progress import Steps
from attnlimit.models.see.text import Document

SOLVED = 0.5
"""Share of examples that the full model must get right: a task that it cannot do says nothing about budgets."""


@dataclass(frozen=True, eq=False)
class NeedleResult:
    """A needle task with all keys and, if the full model solves it, with budgets."""

    full: TaskResult
    sampled: tuple[TaskResult, ...] = ()
    """One a seed; none where the full model does not solve the task."""
    sampled_value: Uncertain | None = None
    drop: Uncertain | None = None
    """Full − sampled."""

    @property
    def solved(self) -> bool:
        return self.full.value >= SOLVED

    @property
    def verdict(self) -> str:
        """What the task says about the budgets, in words."""
        if not self.solved:
            return f"not solved by the full model (score {self.full.value:.2f}): says nothing about budgets"
        return f"{self.full.value:.2f} with all keys, {self.sampled_value!r} sampled; loss {self.drop!r}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.full.name,
            "solved": self.solved,
            "verdict": self.verdict,
            "full": self.full.to_dict(),
            "sampled": [one.to_dict() for one in self.sampled],
            "sampled_value": None if self.sampled_value is None else self.sampled_value.to_dict(),
            "drop": None if self.drop is None else self.drop.to_dict(),
        }


def needle_result(
    loaded: Loaded, budgets: Budgets, texts: Sequence[Document], trial: Trial, steps: Steps
) -> NeedleResult:
    """The trial's task with all keys, and with budgets if that is worth it."""
    found = NeedleResult(trial.evaluate(loaded, texts, steps.next()))
    if not found.solved:
        steps.skip(len(trial.seeds))
        return found
    sampled = trial.sampled(loaded, budgets, texts, steps)
    value, drop = compared(found.full, sampled, trial.level)
    return replace(found, sampled=sampled, sampled_value=value, drop=drop)
