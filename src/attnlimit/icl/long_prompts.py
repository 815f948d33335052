"""How fast the risk of regression vanishes on long prompts: its constant, for softmax and linear attention."""

from __future__ import annotations

import math

import torch
from scipy.optimize import minimize_scalar

from attnlimit.errors import InputError
from attnlimit.icl.tasks import Task
from attnlimit.icl.weights import regression


def long_prompt_constant(task: Task, attention: str = "softmax") -> float:
    """lim L·R_L of the best weights, so that a prompt of c/ε tokens has risk ε.

    With τ = tr ΣP + noise, the variance of an answer y,

        linear   ½ E [τ xᵀΣ⁻¹x + xᵀPx]
        softmax  ½ min_b E e^{xᵀΣ⁻¹x/b²} [τ b² + xᵀPx],   x ~ N(0, Σ_q):

    the central limit theorem at A = Σ⁻¹/b, which for d > 1 every head with zero infinite-prompt risk has, and in which b is free
    (for d = 1 a head may also weigh tokens by y and read x, which is left out). A larger b flattens the softmax, but multiplies the noise of the
    plain mean that is then left in it. So softmax is worse than linear attention by a factor that does not go away:
    ((d + 2)/d)^{d/2+1} for Σ = Σ_q where noise outweighs the signal, which is 5.2 in one dimension and e in many, and about as much
    otherwise.

    >>> from attnlimit.icl import LinearRegression
    >>> task = LinearRegression(5, noise=0.1)
    >>> [round(long_prompt_constant(task, attention), 3) for attention in ("softmax", "linear")]
    [10.401, 3.25]
    """
    task = regression(task, "long_prompt_constant")
    tau = float((task.cov @ task.vector_cov).trace()) + task.noise
    root = torch.linalg.cholesky(task.query_cov)
    spreads, turn = torch.linalg.eigh(root.mT @ torch.linalg.solve(task.cov, root))
    weights = (turn.mT @ root.mT @ task.vector_cov @ root @ turn).diagonal()
    if attention == "linear":
        return float(tau * spreads.sum() + weights.sum()) / 2
    if attention != "softmax":
        raise InputError(f"attention must be one of softmax, linear, got {attention!r}.")

    def log_constant(excess: float) -> float:
        """At b² = 2 max(spreads) + e^excess, above which the expectation is finite."""
        square = 2 * float(spreads.max()) + math.exp(excess)
        inverse = 1 / (1 - 2 * spreads / square)
        return float(inverse.log().sum() / 2 + (tau * square + weights @ inverse).log())

    middle = math.log(float(spreads.sum()))
    found = minimize_scalar(
        log_constant, bounds=(middle - 10, middle + 10), method="bounded", options={"xatol": 1e-9}
    )
    return math.exp(float(found.fun)) / 2
