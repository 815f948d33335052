"""Weights of regression tuned to a prompt length without training: what training on such prompts finds."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize

from attnlimit.errors import InputError
from attnlimit.icl.finite import finite_risk
from attnlimit.icl.stationary import endpoint
from attnlimit.icl.tasks import LinearRegression, Task
from attnlimit.icl.weights import Block, regression
from attnlimit.inputs import as_count


def tuned(task: Task, length: int, attention: str = "softmax") -> tuple[Block, float]:
    """The block (A, b) of least exact risk R_L, and that risk; for attention "softmax" or "linear".

    Softmax: the least among A = α(Σ + λ I)⁻¹/b. With an infinite prompt all b are alike once bΣA = I. With L tokens they are
    not: a large b lowers the scores, so that more tokens count, but it also multiplies the noise of their plain mean. λ and α
    shrink as ridge regression does.

    Linear: the prediction is b hᵀA x_q with h = (1/L) Σ y_i x_i, so the best bA is (E hhᵀ)⁻¹ΣP, where for Gaussian tokens
    E hhᵀ = (1 + 1/L) ΣPΣ + (tr ΣP + noise)/L Σ. Its risk ½ tr Σ_q(P − PΣ(E hhᵀ)⁻¹ΣP) is the least of all linear heads: what else
    (U, V) can add is even in w, which the target is odd in.

    >>> from attnlimit.icl import LinearRegression
    >>> task = LinearRegression(5, noise=0.1)
    >>> [round(tuned(task, 100, attention)[1], 4) for attention in ("softmax", "linear")]
    [0.0793, 0.0305]
    """
    task, length = regression(task, "tuned"), as_count(length, "length")
    if attention == "linear":
        return _linear(task, length)
    if attention == "softmax":
        return _softmax(task, length)
    raise InputError(f"attention must be one of softmax, linear, got {attention!r}.")


def _linear(task: LinearRegression, length: int) -> tuple[Block, float]:
    P, cov = task.vector_cov, task.cov
    both = cov @ P
    spread = (1 + 1 / length) * both @ cov + (float(both.trace()) + task.noise) / length * cov
    best = torch.linalg.solve(spread, both)
    b = float(best.norm()) ** 0.5  # balanced: ‖A‖ = b
    return Block(best / b, b), float((task.query_cov @ (P - both.T @ best)).trace()) / 2


def _softmax(task: LinearRegression, length: int) -> tuple[Block, float]:
    start = endpoint(task)
    eye, size = torch.eye(task.dim, dtype=torch.float64), float(task.cov.trace()) / task.dim

    def block(parameters: np.ndarray) -> Block:
        log_b, log_alpha, log_ridge = (float(p) for p in parameters)
        b, ridge = math.exp(log_b), size * math.exp(log_ridge)
        return Block(math.exp(log_alpha - log_b) * torch.linalg.inv(task.cov + ridge * eye), b)

    def objective(parameters: np.ndarray) -> float:
        return math.log(float(finite_risk(task, block(parameters), [length]).risk[0]))

    first = np.array([math.log(start.b) + 0.3, 0.0, math.log(max(task.dim / length, 1e-9))])
    found = minimize(objective, first, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6})
    return block(found.x), math.exp(float(found.fun))
