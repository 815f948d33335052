"""Training on infinite prompts: gradient flow and gradient descent of the exact risk, and the path of weights they take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import solve_ivp
from torch import Tensor

from attnlimit.drawing import Drawn
from attnlimit.errors import AttnlimitError, InputError, LimitDoesNotExist
from attnlimit.files.records import Recorded
from attnlimit.icl.infinite import (
    Block,
    Problem,
    Theta,
    Weights,
    as_theta,
    balanced,
    problem,
    regression,
    risk_method,
)
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.inputs import Array, Count, Positive, Steps, as_float, shown

LONGEST, TOO_FAR = 1e6, 1e6
Solver: TypeAlias = Literal["LSODA", "DOP853", "BDF", "Radau"]


class Diverged(AttnlimitError, ArithmeticError):
    """Training left all bounds: the message names the step, the norm of the weights and the step size."""

    def __init__(self, message: str, step: int, norm: float) -> None:
        super().__init__(message)
        self.step = step
        self.norm = norm


@dataclass(frozen=True, eq=False, repr=False)
class WeightPath(Recorded, Drawn):
    """Weights, risk and gradient norm at each time (flow) or after each step size × steps (descent)."""

    also = ("conserved", "drift")

    task: InContextTask
    times: Float[Tensor, " T"]
    U: Float[Tensor, "T D D"]
    V: Float[Tensor, "T D D"]
    risk: Float[Tensor, " T"]
    gradient_norm: Float[Tensor, " T"]
    form: str
    method: str
    stopped: str
    """Why the path ends where it does, in words."""

    @property
    def A(self) -> Float[Tensor, "T d d"]:
        """The upper left block of U."""
        return self.U[:, :-1, :-1]

    @property
    def b(self) -> Float[Tensor, " T"]:
        """The lower right entry of V."""
        return self.V[:, -1, -1]

    @property
    def end(self) -> Weights:
        return Weights(self.U[-1], self.V[-1])

    @property
    def end_block(self) -> Block:
        return Block(self.A[-1], float(self.b[-1]))

    @property
    def conserved(self) -> Float[Tensor, " T"] | None:
        """‖U‖_F² − ‖V‖_F² (‖A‖_F² − b² for the block), which the flow of regression keeps since its model depends on
        products of U and V alone; None for tasks that keep nothing."""
        if not isinstance(self.task, LinearRegression):
            return None
        return self.U.square().sum((-2, -1)) - self.V.square().sum((-2, -1))

    @property
    def drift(self) -> float | None:
        """Largest change of the conserved quantity: for a flow the solver's error, for descent of the order of the step."""
        c = self.conserved
        return None if c is None else float((c - c[0]).abs().max())

    def __repr__(self) -> str:
        drift = "" if self.drift is None else f", conserved to {self.drift:.1e}"
        return (
            f"WeightPath({self.form}, t = 0 … {float(self.times[-1]):.4g}, risk {float(self.risk[0]):.4g} … "
            f"{float(self.risk[-1]):.4g}{drift}; {self.method})"
        )


def flow(
    task: InContextTask,
    theta0: Theta | None = None,
    *,
    times: Array | None = None,
    gradient_norm: Positive = 1e-7,
    rtol: Positive = 1e-9,
    atol: Positive = 1e-11,
    solver: Solver = "LSODA",
) -> WeightPath:
    """θ̇ = −∇R(θ), R the infinite-prompt risk, by scipy's solve_ivp with the tolerances given.

    theta0
        (A, b) with b a number: the block form of regression, Ȧ = bΣP(I − bΣA)Σ_q, ḃ = tr(P(I − bΣA)Σ_q AᵀΣ). (U, V): all
        weights of any task. A balanced start of scale 0.1 unless given.
    times
        Where the path is reported, increasing, from 0 on. Without them the flow runs until ‖∇R‖ ≤ `gradient_norm`, at most
        to t = 10⁶, and is reported at the solver's own steps.

    From other starts than the block's, the full flow of regression may not end: the risk also tends to 0 at infinity, along
    the valley v₂ → 0 with u₂ = v₁/(v₁ᵀΣv₁) and U₁ = Σ⁻¹(I − Σv₁u₂ᵀ)/v₂, like v₂² (v = (v₁, v₂) is V's last row). The end is then
    reported as time, not as a small gradient.

    For regression all expectations are exact, in Gaussian moments, with w ~ N(0, P), x_q ~ N(0, Σ_q) and the noise of the task,
    and the path's `drift` tells how well ‖U‖² − ‖V‖² was kept. For other tasks see `infinite_risk`.

    >>> from attnlimit.icl import LinearRegression, endpoint
    >>> task = LinearRegression(3)
    >>> path = flow(task)
    >>> round(float(path.b[-1]), 6), round(endpoint(task).b, 6)
    (1.316074, 1.316074)
    """
    theta = as_theta(task, balanced(regression(task, "A balanced start")) if theta0 is None else theta0)
    grid = None if times is None else _checked_times(times)
    parts = problem(task, theta)

    def velocity(t: float, flat: np.ndarray) -> np.ndarray:
        with no_limit(
            f"The flow leaves the set of weights with an infinite-prompt model at time t = {t:.4g}"
        ):
            return -parts.value_and_gradient(torch.from_numpy(flat))[1].numpy()

    def settled(t: float, flat: np.ndarray) -> float:
        return float(np.linalg.norm(velocity(t, flat))) - gradient_norm

    settled.terminal = True  # type: ignore[attr-defined]
    last = LONGEST if grid is None else float(grid[-1])
    solved = solve_ivp(
        velocity,
        (0.0, last),
        parts.start.numpy(),
        method=solver,
        t_eval=grid,
        events=settled if grid is None else None,
        rtol=rtol,
        atol=atol,
    )
    if solved.status < 0:
        raise AttnlimitError(
            f"The solver gave up at t = {float(solved.t[-1]):.4g}: {solved.message} Use a looser rtol, or solver='BDF'."
        )
    words = f"‖∇R‖ ≤ {gradient_norm:g}" if solved.status == 1 else f"t = {last:g} was reached"
    how = f"{solver}, rtol {rtol:g}, atol {atol:g}; risk {risk_method(task)}"
    points = [torch.tensor(point) for point in solved.y.T]
    return _gathered(task, parts, solved.t.tolist(), points, how, words)


def descend(
    task: InContextTask,
    theta0: Theta,
    *,
    step_size: Positive,
    steps: Steps,
    record_every: Count | None = None,
) -> WeightPath:
    """θ_{k+1} = θ_k − step_size·∇R(θ_k) on the infinite-prompt risk; times of the path are step_size·k, as for the flow.

    theta0 is (A, b) or (U, V), as in `flow`. About 200 points are recorded unless `record_every` is given, and always the
    last. Weights beyond 10⁶ times the start stop the run with `Diverged`.

    >>> from attnlimit.icl import LinearRegression, balanced
    >>> task = LinearRegression(3)
    >>> descend(task, balanced(task), step_size=0.5, steps=200).risk[-1] < 1e-6
    tensor(True)
    """
    every = max(1, steps // 200) if record_every is None else record_every
    parts = problem(task, as_theta(task, theta0))
    flat = parts.start
    bound = TOO_FAR * (1 + float(flat.norm()))
    times, points = [0.0], [flat]
    for step in range(1, steps + 1):
        with no_limit(f"Descent stops at step {step} of {steps}"):
            flat = flat - step_size * parts.value_and_gradient(flat)[1]
        norm = float(flat.norm())
        if not math.isfinite(norm) or norm > bound:
            raise Diverged(
                f"Descent diverged at step {step} of {steps}: the weights' norm is {norm:.3g} (at the start "
                f"{float(parts.start.norm()):.3g}), with step size {step_size:g}. Use a smaller one, e.g. {step_size / 4:.2g}.",
                step,
                norm,
            )
        if step % every == 0 or step == steps:
            times.append(step_size * step)
            points.append(flat)
    method = f"gradient descent, step size {step_size:g}; risk {risk_method(task)}"
    return _gathered(task, parts, times, points, method, f"{steps} steps were made")


def _gathered(
    task: InContextTask, problem: Problem, times: list[float], points: list[Tensor], method: str, stopped: str
) -> WeightPath:
    """The path through these flat points."""
    risks, gradients = zip(*(problem.value_and_gradient(point) for point in points), strict=True)
    weights = [problem.weights(point) for point in points]
    return WeightPath(
        task,
        torch.tensor(times, dtype=torch.float64),
        torch.stack([w.U for w in weights]),
        torch.stack([w.V for w in weights]),
        torch.stack(risks),
        torch.stack([gradient.norm() for gradient in gradients]),
        problem.form,
        method,
        stopped,
    )


@contextmanager
def no_limit(when: str) -> Iterator[None]:
    """Where the infinite-prompt model does not exist, the error says when that happened."""
    try:
        yield
    except LimitDoesNotExist as reason:
        raise LimitDoesNotExist(f"{when}: {reason}") from reason


def _checked_times(times: Array) -> np.ndarray:
    grid = as_float(times, "times").detach().double().cpu().numpy()
    if grid.ndim != 1 or len(grid) < 1 or grid[0] < 0 or not (np.diff(grid) > 0).all() or grid[-1] == 0:
        raise InputError(f"times must increase from 0 or later, as (T,) numbers, got {shown(times)}.")
    return grid
