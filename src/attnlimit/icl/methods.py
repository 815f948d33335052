"""How a model is trained: the optimiser, what is evaluated, where it starts, what is saved. Each checks itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.icl.infinite import Theta
from attnlimit.inputs import Count, as_count, as_counts, as_positive, as_steps

Attention: TypeAlias = Literal["softmax", "opposite", "linear"]
"""Of a query's scores and the tokens' values: the softmax mean; half the difference of the softmax means of scores and of minus the
scores, which are two heads (A, b/2) and (−A, −b/2); or the plain mean of score × value."""
MODELS: dict[Attention, str] = {
    "softmax": "softmax attention",
    "opposite": "two opposite heads",
    "linear": "linear attention",
}
"""In words."""
Kind: TypeAlias = Literal["sgd", "momentum", "adam"]
Schedule: TypeAlias = Literal["constant", "cosine"]
Dtype: TypeAlias = Literal["float32", "float64"]
State: TypeAlias = dict[str, Tensor]

MOMENTUM, ADAM, TINY = 0.9, (0.9, 0.999), 1e-8
STRICT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""For pydantic, which reads these classes from files as they are: no other fields."""


def _sgd(theta: Tensor, gradient: Tensor, state: State, lr: float, number: int) -> None:
    """θ ← θ − lr g."""
    theta.sub_(gradient, alpha=lr)


def _momentum(theta: Tensor, gradient: Tensor, state: State, lr: float, number: int) -> None:
    """v ← 0.9 v + g, θ ← θ − lr v: follows the flow at ten times the pace."""
    state["velocity"].mul_(MOMENTUM).add_(gradient)
    theta.sub_(state["velocity"], alpha=lr)


def _adam(theta: Tensor, gradient: Tensor, state: State, lr: float, number: int) -> None:
    """m ← 0.9 m + 0.1 g, s ← 0.999 s + 0.001 g², θ ← θ − lr m̂/(√ŝ + 1e−8), both corrected for their zero start."""
    first, second = ADAM
    state["mean"].lerp_(gradient, 1 - first)
    state["square"].lerp_(gradient.square(), 1 - second)
    scale = (state["square"] / (1 - second**number)).sqrt_().add_(TINY)
    theta.addcdiv_(state["mean"], scale, value=-lr / (1 - first**number))


class Rule(NamedTuple):
    """step(theta, gradient, state, lr, number) changes theta and state of all models in place."""

    step: Callable[[Tensor, Tensor, State, float, int], None]
    keeps: tuple[str, ...] = ()
    """Tensors of theta's shape that it keeps from step to step, zero at first."""
    time_per_lr: float | None = 1.0
    """Time of the gradient flow that a step of size lr = 1 follows; None where it follows another path."""


RULES: dict[str, Rule] = {
    "sgd": Rule(_sgd),
    "momentum": Rule(_momentum, ("velocity",), 1 / (1 - MOMENTUM)),
    "adam": Rule(_adam, ("mean", "square"), None),
}


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """`steps` steps, each with the gradient of the mean loss of `batch` fresh prompts.

    kind
        "sgd", "momentum" (0.9) or "adam".
    lr, schedule
        The step size: "constant", or falling to 0 along half a "cosine".
    variance_reduction
        "control": ĝ − ĝ_∞ + ∇R_∞ with ĝ_∞ the gradient that the same task vectors and queries have with infinite prompts
        and ∇R_∞ its exact mean. Unbiased; removes the noise of tasks and queries, not that of prompts.
    dtype, device
        Of prompts and gradients; weights are kept in float64.
    """

    kind: Kind = "sgd"
    lr: float | int = 1e-3
    schedule: Schedule = "constant"
    variance_reduction: Literal[None, "control"] = None
    batch: int = 128
    steps: int = 300_000
    dtype: Dtype = "float32"
    device: str = "cpu"

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        try:
            torch.device(self.device)
        except (RuntimeError, TypeError) as problem:
            raise InputError(
                f"device must be one of torch's, such as cpu or cuda, got {self.device!r}."
            ) from problem
        object.__setattr__(self, "lr", as_positive(self.lr, "lr"))
        for name in ("batch", "steps"):
            object.__setattr__(self, name, as_count(getattr(self, name), name))

    @property
    def rule(self) -> Rule:
        return RULES[self.kind]

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype == "float32" else torch.float64

    def rate(self, number: int) -> float:
        """The step size of step `number` = 1 … steps."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * (number - 1) / self.steps)) / 2

    def __str__(self) -> str:
        control = self.variance_reduction or "none"
        return (
            f"{self.kind}, lr {self.lr:g} {self.schedule}, batch {self.batch}, variance reduction {control}"
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is reported along training.

    reports
        Steps to report at, to which the first and last are added, or how many log-spaced ones.
    test_lengths
        Other prompt lengths to test at.
    prompts
        Fresh prompts a seed, the same at every report.
    """

    reports: int | tuple[int, ...] = 24
    test_lengths: tuple[int, ...] = ()
    prompts: int = 4096

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        if isinstance(self.reports, int):
            as_count(self.reports, "reports")
        tested = as_counts(self.test_lengths, "test_lengths") if len(self.test_lengths) else ()
        object.__setattr__(self, "test_lengths", tuple(tested))
        object.__setattr__(self, "prompts", as_steps(self.prompts, "prompts"))

    def steps(self, last: Count) -> tuple[int, ...]:
        """The steps reported at, of a training of `last` steps."""
        if isinstance(self.reports, int):
            given = {round(step) for step in np.geomspace(1, float(last), max(2, self.reports))}
        else:
            given = set(self.reports)
        if any(not 0 <= step <= last for step in given):
            raise InputError(f"reports must be steps from 0 to {last}, got {sorted(given)}.")
        return tuple(sorted(given | {0, last}))


@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """Where training starts, all lengths alike: as many times as there are `seeds`, which share nothing else.

    init
        (U, V), (A, b), or the scale of a start drawn for each seed: for regression balanced (`icl.balanced`), so that the
        infinite-prompt flow from it reaches zero risk, else with entries N(0, scale²/D).
    """

    init: Theta | float | int = 0.1
    seeds: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.init, tuple):
            object.__setattr__(self, "init", as_positive(self.init, "init"))
        object.__setattr__(self, "seeds", as_count(self.seeds, "seeds"))


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What is kept and told while training.

    checkpoint, resume
        A file written at every report and every 30 seconds. If it exists the run goes on from it and ends with the
        same numbers, bit for bit, as one that was never stopped; with resume=False it starts anew.
    progress
        Called with steps done and steps in all.
    """

    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = True
    progress: Callable[[int, int], object] | None = None

    @property
    def path(self) -> Path | None:
        return None if self.checkpoint is None else Path(self.checkpoint)
