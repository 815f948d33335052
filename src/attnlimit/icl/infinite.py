"""The infinite-prompt model and its risk, differentiable and batched over many models, and with its gradient for solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.icl.tasks import InContextTask, LinearRegression, Prompts
from attnlimit.icl.weights import Block, Weights
from attnlimit.inputs import Array, as_float

DRAWS, SEED = 4096, 2512_11786
Flat = Float[Tensor, " k"]


def infinite_predictions(
    task: InContextTask, U: Float[Tensor, "*models D D"], V: Float[Tensor, "*models D D"], prompts: Prompts
) -> Float[Tensor, "*models B *k"]:
    """read(V ∇Λ_w(U query)) for every model and prompt: the prompt's tokens are not used, only its law given its task
    vector w."""
    a = prompts.query @ U.mT
    return task.read(task.tilted_mean(prompts.vector, a) @ V.mT)


def infinite_risk(task: InContextTask, U: Array, V: Array) -> Float[Tensor, "*models"]:
    """R(U, V) = E_{w, query} loss(read(V ∇Λ_w(U query)), target), shape (*models,) for U, V (*models, D, D).

    Closed form where the task has one (`InContextTask.exact_risk`: linear regression). Else the infinite-prompt model is exact and
    the average is over 4,096 fixed draws of (w, query, target): a smooth deterministic function, with sampling error in the
    average. Differentiable by autograd.

    >>> from attnlimit.icl import LinearRegression
    >>> U, V = [[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]
    >>> infinite_risk(LinearRegression(1), U, V)
    tensor(0., dtype=torch.float64)
    """
    U = _square(U, task, "U")
    V = _square(V, task, "V", like=U)
    exact = task.exact_risk(U, V)
    if exact is not None:
        return exact
    return mean_loss(task, U, V, fixed_draws(task, U.dtype, U.device))


def mean_loss(task: InContextTask, U: Tensor, V: Tensor, prompts: Prompts) -> Float[Tensor, "*models"]:
    """Of each infinite-prompt model, over the task vectors, queries and targets of the prompts."""
    return task.risk(infinite_predictions(task, U, V, prompts), prompts.target).mean(-1)


def has_exact_risk(task: InContextTask) -> bool:
    """Whether the infinite-prompt risk is known without sampling."""
    zero = torch.zeros(task.token_dim, task.token_dim, dtype=torch.float64)
    return task.exact_risk(zero, zero) is not None


def risk_method(task: InContextTask) -> str:
    """How `infinite_risk` averages, in words."""
    if has_exact_risk(task):
        return "exact (Gaussian moments)"
    return f"exact infinite-prompt model, averaged over {DRAWS:,} fixed draws of task and query"


@lru_cache(maxsize=8)
def fixed_draws(task: InContextTask, dtype: torch.dtype, device: torch.device) -> Prompts:
    """The draws of (task vector, query, target) that sampled risks share; their one-token prompts are not used."""
    return Prompts(*(part.to(device) for part in task.draw(DRAWS, 1, SEED, dtype)))


def _square(value: Array, task: InContextTask, name: str, like: Tensor | None = None) -> Tensor:
    matrix = as_float(value, name, dtype=getattr(like, "dtype", None), device=getattr(like, "device", None))
    D = task.token_dim
    if matrix.shape[-2:] != (D, D):
        raise InputError(
            f"{name} must have shape (*models, {D}, {D}) for {task!r}, whose tokens have {D} coordinates, "
            f"got {tuple(matrix.shape)}."
        )
    return matrix


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
    return _full(task, theta.embed())


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
