"""What a training run is: everything that decides its numbers, checked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError, NotKnown
from attnlimit.icl.batches import START, stream
from attnlimit.icl.optimizers import SCHEDULES, named
from attnlimit.icl.tasks import LinearRegression, Task
from attnlimit.icl.weights import Block, Theta, as_theta, balanced
from attnlimit.inputs import as_count, as_counts, as_generator, as_positive

ATTENTIONS, DTYPES = ("softmax", "linear"), (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The settings of `train`; see there."""

    task: Task
    lengths: tuple[int, ...]
    attention: str
    optimizer: str
    lr: float
    schedule: str
    variance_reduction: str | None
    batch: int
    steps: int
    seeds: int
    reports: tuple[int, ...]
    test_lengths: tuple[int, ...]
    evaluation: int
    dtype: torch.dtype
    device: str
    base: int
    """The number that all random streams are made from."""
    starts: Float[Tensor, "S 2 D D"]
    """(U, V) that each seed's models start from, all lengths alike."""

    def fingerprint(self) -> dict[str, Any]:
        """Plain values that tell two plans apart; a checkpoint is only continued by the plan that wrote it."""
        plain = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("task", "starts", "device")
        }
        plain |= {"dtype": str(self.dtype), "task": repr(self.task), "start": _digest(self.starts)}
        values = {k: v for k, v in vars(self.task).items() if not k.startswith("_")}
        plain["task values"] = _digest(*(values[name] for name in sorted(values)))
        return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}


def checked_plan(
    task: object,
    lengths: object,
    *,
    attention: str,
    optimizer: str,
    schedule: str,
    variance_reduction: str | None,
    lr: float | int,
    batch: int,
    steps: int,
    seeds: int,
    init: Theta | float | int,
    reports: int | Sequence[int],
    test_lengths: object,
    evaluation: int,
    dtype: torch.dtype,
    device: str,
    generator: object,
) -> Plan:
    """The plan, or what is wrong with the first argument that is."""
    if not isinstance(task, Task):
        raise InputError(f"task must be an icl task such as LinearRegression(5), got {task!r}.")
    _one_of(attention, ATTENTIONS, "attention")
    _one_of(schedule, SCHEDULES, "schedule")
    _one_of(variance_reduction, (None, "control"), "variance_reduction")
    _one_of(dtype, DTYPES, "dtype")
    named(optimizer)
    if variance_reduction == "control" and not has_exact_risk(task):
        raise NotKnown(
            f"variance_reduction='control' needs the exact infinite-prompt gradient, and {task!r} has none: leave it out."
        )
    count, steps = as_count(seeds, "seeds"), as_count(steps, "steps")
    base = int(torch.randint(2**62, (), generator=as_generator(generator)))
    return Plan(
        task=task,
        lengths=tuple(as_counts(lengths, "lengths")),
        attention=attention,
        optimizer=optimizer,
        lr=as_positive(lr, "lr"),
        schedule=schedule,
        variance_reduction=variance_reduction,
        batch=as_count(batch, "batch"),
        steps=steps,
        seeds=count,
        reports=_report_steps(reports, steps),
        test_lengths=tuple(as_counts(test_lengths, "test_lengths")) if _given(test_lengths) else (),
        evaluation=as_count(evaluation, "evaluation"),
        dtype=dtype,
        device=str(device),
        base=base,
        starts=torch.stack([_start(task, init, base, seed) for seed in range(count)]),
    )


def has_exact_risk(task: Task) -> bool:
    """Whether the infinite-prompt risk is known without sampling."""
    zero = torch.zeros(task.token_dim, task.token_dim, dtype=torch.float64)
    return task.exact_risk(zero, zero) is not None


def _start(task: Task, init: Theta | float | int, base: int, seed: int) -> Float[Tensor, "2 D D"]:
    """A number: a random balanced start of that scale for regression, entries N(0, scale²/D) for other tasks."""
    if isinstance(init, tuple):
        theta = as_theta(task, init)
        return torch.stack(list(theta.embed() if isinstance(theta, Block) else theta))
    scale, generator = as_positive(init, "init"), stream(base, START, seed, 0)
    if isinstance(task, LinearRegression):
        return torch.stack(list(balanced(task, scale, generator).embed()))
    D = task.token_dim
    return scale / math.sqrt(D) * torch.randn(2, D, D, generator=generator, dtype=torch.float64)


def _report_steps(reports: int | Sequence[int], steps: int) -> tuple[int, ...]:
    """Given steps (0 and the last are added), or about so many log-spaced ones."""
    if isinstance(reports, Sequence):
        given = {int(step) for step in reports}
        if any(not 0 <= step <= steps for step in given):
            raise InputError(f"reports must be steps from 0 to {steps}, got {list(reports)!r}.")
        return tuple(sorted(given | {0, steps}))
    grid = np.geomspace(1, steps, max(2, as_count(reports, "reports")))
    return tuple(sorted({0, steps} | {round(step) for step in grid}))


def _given(value: object) -> bool:
    return value is not None and not (isinstance(value, Sequence) and len(value) == 0)


def _one_of(value: object, allowed: Sequence[object], name: str) -> None:
    if value not in allowed:
        words = ", ".join(str(one) for one in allowed)
        raise InputError(f"{name} must be one of {words}, got {value!r}.")


def _digest(*values: object) -> str:
    total = hashlib.sha256()
    for value in values:
        plain = value.tolist() if isinstance(value, Tensor) else value
        total.update(repr(plain).encode())
    return total.hexdigest()[:16]
