"""The infinite-prompt model and its risk, differentiable and batched over many models."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.icl.tasks.base import InContextTask, Prompts
from attnlimit.inputs import Array, as_float

DRAWS, SEED = 4096, 2512_11786


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
    prompts = fixed_draws(task, U.dtype, U.device)
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
