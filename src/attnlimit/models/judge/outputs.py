"""A model's task with the outputs it was done with, and how far fewer keys change them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.models.judge.tasks import Labels, OutputTask, Retrieval, TaskRun
from attnlimit.models.see.load import Loaded


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A metric example by example, and the output of every row that the model read."""

    metric: str
    per_example: Float[Tensor, " examples"]
    outputs: Float[Tensor, "rows d"]
    """Embeddings of an encoder, logits of a classifier."""
    logits: bool


@dataclass(frozen=True, eq=False)
class Changes:
    """What is different from the full model, example by example."""

    change: Float[Tensor, " examples"]
    """Of the outputs, relative."""
    divergence: Float[Tensor, " examples"] | None
    """KL(full ‖ sampled) in nats; None for models without classes, like the next."""
    agreement: Float[Tensor, " examples"] | None
    """1 where the most probable answer is the same."""


def output_task(loaded: Loaded) -> OutputTask:
    """The labels of a classifier, the retrieval of an encoder."""
    return Labels() if loaded.kind == "classifier" else Retrieval()


def evaluate(loaded: Loaded, run: TaskRun, full: Evaluated | None = None) -> Evaluated:
    """The model's task; answers of the `full` model (none: its own) stand in for labels that texts do not have."""
    task = output_task(loaded)
    with torch.no_grad():
        outputs = task.outputs(run)
    if isinstance(task, Labels) and all(one.label is None for one in run.first_documents()):
        answers = (outputs if full is None else full.outputs).argmax(1)
        right = (outputs.argmax(1) == answers).double()
        return Evaluated("agreement with the full model", right, outputs, True)
    return Evaluated(task.name, task.judged(run, outputs)[0], outputs, isinstance(task, Labels))


def changes(full: Evaluated, sampled: Evaluated) -> Changes:
    """`sampled` beside `full`; an encoder's example has several rows, which lie together."""
    difference = (sampled.outputs - full.outputs).square().sum(1)
    relative = difference / full.outputs.square().sum(1).clamp_min(1e-300)
    change = relative.view(len(full.per_example), -1).mean(1).sqrt()
    if not full.logits:
        return Changes(change, None, None)
    p, q = full.outputs.log_softmax(1), sampled.outputs.log_softmax(1)
    divergence = (p.exp() * (p - q)).sum(1).clamp_min(0)
    return Changes(change, divergence, (p.argmax(1) == q.argmax(1)).double())
