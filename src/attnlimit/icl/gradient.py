"""The infinite-prompt risk as a function of one flat vector, with its gradient, for solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.icl.infinite import infinite_risk
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.icl.weights import Block, Weights

Flat = Float[Tensor, " k"]


@dataclass(frozen=True, eq=False)
class Problem:
    """Risk and gradient at a flat vector of weights."""

    form: str
    start: Flat
    value_and_gradient: Callable[[Flat], tuple[Tensor, Flat]]
    weights: Callable[[Flat], Weights]


def problem(task: InContextTask, theta: Weights | Block) -> Problem:
    """The block form of regression, with its gradient written out, or full weights, with autograd's."""
    if isinstance(theta, Block) and isinstance(task, LinearRegression):
        return _block(task, theta)
    return _full(task, theta.embed() if isinstance(theta, Block) else theta)


def _block(task: LinearRegression, theta: Block) -> Problem:
    d, cov, query, P = task.dim, task.cov, task.query_cov, task.vector_cov

    def value_and_gradient(flat: Flat) -> tuple[Tensor, Flat]:
        """R = ½ tr(P E Σ_q Eᵀ) with E = bΣA − I;  ∂R/∂A = bΣ P E Σ_q,  ∂R/∂b = tr(P E Σ_q AᵀΣ)."""
        A, b = flat[:-1].reshape(d, d), flat[-1]
        reach = cov @ A
        error = b * reach - torch.eye(d, dtype=flat.dtype)
        pull = P @ error @ query
        in_b = (pull * reach).sum()
        return (pull * error).sum() / 2, torch.cat([(b * cov @ pull).flatten(), in_b[None]])

    def weights(flat: Flat) -> Weights:
        return Block(flat[:-1].reshape(d, d), float(flat[-1])).embed()

    start = torch.cat([theta.A.flatten(), theta.A.new_tensor([theta.b])])
    return Problem("block (A, b)", start, value_and_gradient, weights)


def _full(task: InContextTask, theta: Weights) -> Problem:
    D = task.token_dim

    def weights(flat: Flat) -> Weights:
        U, V = flat.reshape(2, D, D)
        return Weights(U, V)

    def value_and_gradient(flat: Flat) -> tuple[Tensor, Flat]:
        flat = flat.detach().requires_grad_(True)
        with torch.enable_grad():
            risk = infinite_risk(task, *weights(flat))
            (gradient,) = torch.autograd.grad(risk, flat)
        return risk.detach(), gradient

    return Problem("full (U, V)", torch.stack(theta).flatten(), value_and_gradient, weights)
