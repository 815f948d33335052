"""Steps of the optimisers, on all models at once and in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from attnlimit.errors import InputError

State: TypeAlias = dict[str, Tensor]
MOMENTUM, ADAM, TINY = 0.9, (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Optimizer:
    """step(theta, gradient, state, lr, number) changes theta and state; number counts from 1."""

    step: Callable[[Tensor, Tensor, State, float, int], None]
    keeps: tuple[str, ...] = ()
    """Tensors of theta's shape that it keeps from step to step, zero at first."""
    time_per_lr: float | None = 1.0
    """Time of the gradient flow that a step of size lr = 1 follows; None where it follows another path."""

    def start(self, theta: Tensor) -> State:
        return {name: torch.zeros_like(theta) for name in self.keeps}


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


OPTIMIZERS = {
    "sgd": Optimizer(_sgd),
    "momentum": Optimizer(_momentum, ("velocity",), 1 / (1 - MOMENTUM)),
    "adam": Optimizer(_adam, ("mean", "square"), None),
}

SCHEDULES = ("constant", "cosine")


def named(optimizer: object) -> Optimizer:
    if not isinstance(optimizer, str) or optimizer not in OPTIMIZERS:
        raise InputError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}.")
    return OPTIMIZERS[optimizer]


def rate(schedule: str, lr: float, number: int, steps: int) -> float:
    """The step size of step `number` = 1 … steps: lr, or half a cosine from lr down to 0."""
    return lr if schedule == "constant" else lr * (1 + math.cos(math.pi * (number - 1) / steps)) / 2
