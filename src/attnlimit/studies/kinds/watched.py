"""A model's task, with the outputs it was done with: embeddings of an encoder, logits of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.models.judge.task_run import TaskRun
from attnlimit.models.judge.tasks import Labels, Retrieval
from attnlimit.models.see.load import Loaded
from attnlimit.models.see.text import Document


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A metric example by example, and the output of every row that the model read."""

    name: str
    per_example: Float[Tensor, " examples"]
    outputs: Float[Tensor, "rows d"]
    logits: bool
    rows: list[list[int]]
    """Tokens of every row, so that texts are cut into tokens only once."""


def evaluate(
    loaded: Loaded, texts: Sequence[Document], tokens: int, examples: int, full: Evaluated | None
) -> Evaluated:
    """The task of an encoder or a classifier; answers of the `full` model stand in for labels that texts do not have."""
    task = watched(loaded, full)
    found = task.evaluate(loaded.model, loaded.need_tokenizer(), texts, tokens=tokens, most=examples)
    agreement = isinstance(task, Answers) and texts[0].label is None
    name = "agreement with the full model" if agreement else found.name
    return Evaluated(name, found.per_example, task.seen[0], isinstance(task, Answers), task.read[0])


def watched(loaded: Loaded, full: Evaluated | None) -> Halves | Answers:
    """The model's task on the same rows as the full evaluation, if there was one."""
    return Answers(full=full) if loaded.kind == "classifier" else Halves(full=full)


@dataclass(frozen=True)
class Halves(Retrieval):
    """Retrieval that keeps its embeddings."""

    full: Evaluated | None = None
    seen: list[Tensor] = field(default_factory=list)
    read: list[list[list[int]]] = field(default_factory=list)

    def rows(self, run: TaskRun) -> list[list[int]]:
        self.read.append(super().rows(run) if self.full is None else self.full.rows)
        return self.read[-1]

    def _embed(self, run: TaskRun, rows: list[list[int]]) -> Tensor:  # type: ignore[override]
        self.seen.append(Retrieval._embed(run, rows))
        return self.seen[-1]


@dataclass(frozen=True)
class Answers(Labels):
    """Labels that keeps its logits."""

    full: Evaluated | None = None
    seen: list[Tensor] = field(default_factory=list)
    read: list[list[list[int]]] = field(default_factory=list)

    def rows(self, run: TaskRun) -> list[list[int]]:
        self.read.append(super().rows(run) if self.full is None else self.full.rows)
        return self.read[-1]

    def measure(self, run: TaskRun) -> tuple[Tensor, dict[str, float]]:
        rows = self.rows(run)
        logits = torch.zeros(len(rows), int(run.model.config.num_labels), dtype=torch.float64)
        for places, inputs in run.padded(rows):
            logits[places] = run.model(**inputs).logits.double().cpu()
        self.seen.append(logits)
        return (logits.argmax(1) == self._wanted(run, logits)).double(), {}

    def _wanted(self, run: TaskRun, logits: Tensor) -> Tensor:
        given = run.first_documents()
        if any(document.label is not None for document in given):
            return torch.tensor([self._index(run.model.config, document) for document in given])
        return (logits if self.full is None else self.full.outputs).argmax(1)


def changes(full: Evaluated, sampled: Evaluated) -> dict[str, Float[Tensor, " examples"]]:
    """By example: the relative change of the outputs; of classifiers also KL(full ‖ sampled) in nats, and whether the
    most probable answer is the same."""
    difference = (sampled.outputs - full.outputs).square().sum(1)
    relative = difference / full.outputs.square().sum(1).clamp_min(1e-300)
    each = relative.view(len(full.per_example), -1)  # rows of one example lie together
    found: dict[str, Any] = {"change": each.mean(1).sqrt()}
    if full.logits:
        p, q = full.outputs.log_softmax(1), sampled.outputs.log_softmax(1)
        found["divergence"] = (p.exp() * (p - q)).sum(1).clamp_min(0)
        found["agreement"] = (p.argmax(1) == q.argmax(1)).double()
    return found
