"""The infinite-prompt solution of regression, tuned to a prompt length without training."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize

from attnlimit.icl.finite import finite_risk
from attnlimit.icl.stationary import endpoint
from attnlimit.icl.tasks import Task
from attnlimit.icl.weights import Block, regression
from attnlimit.numerics.inputs import as_count


def tuned(task: Task, length: int) -> tuple[Block, float]:
    """The block of least exact risk R_L among A = α(Σ + λ I)⁻¹/b, and that risk.

    With an infinite prompt all b are alike once bΣA = I. With L tokens they are not: a large b lowers the scores, so that more
    tokens count, but it also multiplies the noise of their plain mean. λ and α shrink as ridge regression does.
    """
    task, length = regression(task, "tuned"), as_count(length, "length")
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
