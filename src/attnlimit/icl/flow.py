"""Training on infinite prompts: gradient flow of the exact risk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from scipy.integrate import solve_ivp

from attnlimit.errors import AttnlimitError, InputError, LimitDoesNotExist
from attnlimit.icl.gradient import Problem, problem
from attnlimit.icl.infinite import risk_method
from attnlimit.icl.path import Path, gathered
from attnlimit.icl.tasks import Task
from attnlimit.icl.weights import Theta, as_theta, balanced, regression
from attnlimit.inputs import Array, as_float, as_positive

LONGEST = 1e6
Solver: TypeAlias = Literal["LSODA", "DOP853", "BDF", "Radau"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)


def flow(
    task: Task,
    theta0: Theta | None = None,
    *,
    times: Array | None = None,
    gradient_norm: float | int = 1e-7,
    rtol: float | int = 1e-9,
    atol: float | int = 1e-11,
    solver: str = "LSODA",
) -> Path:
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
    method = next((name for name in SOLVERS if name == solver), None)
    if method is None:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, got {solver!r}.")
    theta = as_theta(task, balanced(regression(task, "A balanced start")) if theta0 is None else theta0)
    rtol, atol = as_positive(rtol, "rtol"), as_positive(atol, "atol")
    grid = None if times is None else _checked_times(times)
    small = as_positive(gradient_norm, "gradient_norm")
    parts = problem(task, theta)
    velocity = _velocity(parts)

    def settled(t: float, flat: np.ndarray) -> float:
        return float(np.linalg.norm(velocity(t, flat))) - small

    settled.terminal = True  # type: ignore[attr-defined]
    last = LONGEST if grid is None else float(grid[-1])
    solved = solve_ivp(
        velocity,
        (0.0, last),
        parts.start.numpy(),
        method=method,
        t_eval=grid,
        events=settled if grid is None else None,
        rtol=rtol,
        atol=atol,
    )
    if solved.status < 0:
        raise AttnlimitError(
            f"The solver gave up at t = {float(solved.t[-1]):.4g}: {solved.message} Use a looser rtol, or solver='BDF'."
        )
    words = f"‖∇R‖ ≤ {small:g}" if solved.status == 1 else f"t = {last:g} was reached"
    how = f"{solver}, rtol {rtol:g}, atol {atol:g}; risk {risk_method(task)}"
    points = [torch.tensor(point) for point in solved.y.T]
    return gathered(task, parts, solved.t.tolist(), points, how, words)


def _velocity(parts: Problem) -> Callable[[float, np.ndarray], np.ndarray]:
    """−∇R; where the infinite-prompt model does not exist, the error says when that happened."""

    def velocity(t: float, flat: np.ndarray) -> np.ndarray:
        try:
            return -parts.value_and_gradient(torch.from_numpy(flat))[1].numpy()
        except LimitDoesNotExist as reason:
            raise LimitDoesNotExist(
                f"The flow leaves the set of weights with an infinite-prompt model at time t = {t:.4g}: {reason}"
            ) from reason

    return velocity


def _checked_times(times: Array) -> np.ndarray:
    grid = as_float(times, "times").detach().double().cpu().numpy()
    if grid.ndim != 1 or len(grid) < 1 or grid[0] < 0 or not (np.diff(grid) > 0).all() or grid[-1] == 0:
        raise InputError(f"times must increase from 0 or later, as (T,) numbers, got {times!r}.")
    return grid
