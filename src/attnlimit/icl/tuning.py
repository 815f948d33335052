"""What training regression on prompts of a length finds, without training: tuned weights, and the risk of long prompts."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar

from attnlimit.icl.finite import finite_risk
from attnlimit.icl.methods import Attention
from attnlimit.icl.stationary import endpoint
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.icl.weights import Block, regression
from attnlimit.inputs import as_count, as_one_of


def tuned(task: InContextTask, length: int, attention: Attention = "softmax") -> tuple[Block, float]:
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
    as_one_of(attention, Attention, "attention")
    return _linear(task, length) if attention == "linear" else _softmax(task, length)


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


def long_prompt_constant(task: InContextTask, attention: Attention = "softmax") -> float:
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
    as_one_of(attention, Attention, "attention")
    tau = float((task.cov @ task.vector_cov).trace()) + task.noise
    root = torch.linalg.cholesky(task.query_cov)
    spreads, turn = torch.linalg.eigh(root.mT @ torch.linalg.solve(task.cov, root))
    weights = (turn.mT @ root.mT @ task.vector_cov @ root @ turn).diagonal()
    if attention == "linear":
        return float(tau * spreads.sum() + weights.sum()) / 2

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
