"""Training on infinite prompts: gradient flow of the exact risk."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp

from attnlimit.errors import AttnlimitError, InputError, LimitDoesNotExist
from attnlimit.icl.gradient import problem
from attnlimit.icl.infinite import risk_method
from attnlimit.icl.path import Path, gathered
from attnlimit.icl.tasks import LinearRegression, Task
from attnlimit.icl.weights import Theta, as_theta, balanced
from attnlimit.numerics.inputs import Array, as_float, as_positive

LONGEST = 1e6


def flow(
    task: Task,
    theta0: Theta | None = None,
    *,
    times: Array | None = None,
    gradient_norm: float = 1e-7,
    rtol: float = 1e-9,
    atol: float = 1e-11,
    solver: str = "LSODA",
) -> Path:
    """θ̇ = −∇R(θ), R the infinite-prompt risk, by scipy's solve_ivp with the tolerances given.

    theta0
        (A, b) with b a number: the block form of regression, Ȧ = bΣP(I − bΣA)Σ_q, ḃ = tr(P(I − bΣA)Σ_q AᵀΣ). (U, V): all
        weights of any task. A balanced start of scale 0.1 unless given.
    times
        Where the path is reported, increasing, from 0 on. Without them the flow runs until ‖∇R‖ ≤ `gradient_norm`, at most
        to t = 10⁶, and is reported at the solver's own steps.

    For regression all expectations are exact, in Gaussian moments, with w ~ N(0, P), x_q ~ N(0, Σ_q) and the noise of the task,
    and the path's `drift` tells how well ‖U‖² − ‖V‖² was kept. For other tasks see `infinite_risk`.

    >>> from attnlimit.icl import LinearRegression, endpoint
    >>> task = LinearRegression(3)
    >>> path = flow(task)
    >>> round(float(path.b[-1]), 6), round(endpoint(task).b, 6)
    (1.316074, 1.316074)
    """
    if theta0 is None and not isinstance(task, LinearRegression):
        raise InputError(f"flow of {task!r} needs theta0=(U, V): only regression has a balanced start.")
    theta = (
        balanced(task) if theta0 is None and isinstance(task, LinearRegression) else as_theta(task, theta0)
    )
    rtol, atol = as_positive(rtol, "rtol"), as_positive(atol, "atol")
    grid = None if times is None else _checked_times(times)
    small = as_positive(gradient_norm, "gradient_norm")
    parts = problem(task, theta)
    calls = 0

    def velocity(t: float, flat: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        try:
            return -parts.value_and_gradient(torch.from_numpy(flat))[1].numpy()
        except LimitDoesNotExist as problem_here:
            raise LimitDoesNotExist(
                f"The flow stops at t = {t:.4g} (evaluation {calls}): {problem_here}"
            ) from problem_here

    def settled(t: float, flat: np.ndarray) -> float:
        return float(np.linalg.norm(velocity(t, flat))) - small

    settled.terminal = True  # type: ignore[attr-defined]
    options: dict[str, Any] = {"events": settled} if grid is None else {"t_eval": grid}
    last = LONGEST if grid is None else float(grid[-1])
    solved = solve_ivp(
        velocity, (0.0, last), parts.start.numpy(), method=solver, rtol=rtol, atol=atol, **options
    )
    if solved.status < 0:
        raise AttnlimitError(
            f"The solver gave up at t = {float(solved.t[-1]):.4g}: {solved.message} Use looser rtol, or solver='BDF'."
        )
    words = f"‖∇R‖ ≤ {small:g}" if solved.status == 1 else f"t = {last:g} was reached"
    method = f"{solver}, rtol {rtol:g}, atol {atol:g}; risk {risk_method(task)}"
    return gathered(
        task, parts, solved.t.tolist(), [torch.tensor(point) for point in solved.y.T], method, words
    )


def _checked_times(times: Array) -> np.ndarray:
    grid = as_float(times, "times").detach().double().cpu().numpy()
    if grid.ndim != 1 or len(grid) < 1 or grid[0] < 0 or not (np.diff(grid) > 0).all() or grid[-1] == 0:
        raise InputError(f"times must increase from 0 or later, as (T,) numbers, got {times!r}.")
    return grid
