"""Plain gradient descent on infinite prompts."""

from __future__ import annotations

import math

from attnlimit.errors import AttnlimitError, LimitDoesNotExist
from attnlimit.icl.gradient import problem
from attnlimit.icl.infinite import risk_method
from attnlimit.icl.path import Path, gathered
from attnlimit.icl.tasks import Task
from attnlimit.icl.weights import Theta, as_theta
from attnlimit.inputs import as_count, as_positive

TOO_FAR = 1e6


class Diverged(AttnlimitError, ArithmeticError):
    """Training left all bounds: the message names the step, the norm of the weights and the step size."""

    def __init__(self, message: str, step: int, norm: float) -> None:
        super().__init__(message)
        self.step = step
        self.norm = norm


def descend(
    task: Task, theta0: Theta, *, step_size: float | int, steps: int, record_every: int | None = None
) -> Path:
    """θ_{k+1} = θ_k − step_size·∇R(θ_k) on the infinite-prompt risk; times of the path are step_size·k, as for the flow.

    theta0 is (A, b) or (U, V), as in `flow`. About 200 points are recorded unless `record_every` is given, and always the
    last. Weights beyond 10⁶ times the start stop the run with `Diverged`.

    >>> from attnlimit.icl import LinearRegression, balanced
    >>> task = LinearRegression(3)
    >>> descend(task, balanced(task), step_size=0.5, steps=200).risk[-1] < 1e-6
    tensor(True)
    """
    size, count = as_positive(step_size, "step_size"), as_count(steps, "steps")
    every = max(1, count // 200) if record_every is None else as_count(record_every, "record_every")
    parts = problem(task, as_theta(task, theta0))
    flat = parts.start
    bound = TOO_FAR * (1 + float(flat.norm()))
    times, points = [0.0], [flat]
    for step in range(1, count + 1):
        try:
            flat = flat - size * parts.value_and_gradient(flat)[1]
        except LimitDoesNotExist as reason:
            raise LimitDoesNotExist(f"Descent stops at step {step} of {count}: {reason}") from reason
        norm = float(flat.norm())
        if not math.isfinite(norm) or norm > bound:
            raise Diverged(
                f"Descent diverged at step {step} of {count}: the weights' norm is {norm:.3g} (at the start "
                f"{float(parts.start.norm()):.3g}), with step size {size:g}. Use a smaller one, e.g. {size / 4:.2g}.",
                step,
                norm,
            )
        if step % every == 0 or step == count:
            times.append(size * step)
            points.append(flat)
    method = f"gradient descent, step size {size:g}; risk {risk_method(task)}"
    return gathered(task, parts, times, points, method, f"{count} steps were made")
