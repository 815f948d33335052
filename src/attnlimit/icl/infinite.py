"""Weights of a one-head model; the infinite-prompt model and its risk, differentiable and batched over many models, and with its gradient
for solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.icl.tasks import InContextTask, LinearRegression, Prompts
from attnlimit.icl.tasks.base import Matrices, check_sizes
from attnlimit.inputs import Array, Seeded, as_float, as_generator, as_positive, shown


class Weights(NamedTuple):
    """Score matrix U and value matrix V, both D×D."""

    U: Float[Tensor, "D D"]
    V: Float[Tensor, "D D"]

    def embed(self) -> Weights:
        """These themselves; see `Block.embed`."""
        return self

    def __repr__(self) -> str:
        return f"Weights({len(self.U)} × {len(self.U)}, ‖U‖ = {float(self.U.norm()):.4g}, ‖V‖ = {float(self.V.norm()):.4g})"


class Block(NamedTuple):
    """U = [[A, 0], [0, 0]] and V = [[0, 0], [0, b]]: infinite-prompt regression predicts b wᵀΣA x_q."""

    A: Float[Tensor, "d d"]
    b: float

    def embed(self) -> Weights:
        """The same model as full matrices."""
        d = len(self.A)
        U, V = torch.zeros(2, d + 1, d + 1, dtype=self.A.dtype, device=self.A.device)
        U[:d, :d], V[d, d] = self.A, self.b
        return Weights(U, V)

    @property
    def conserved(self) -> float:
        """‖A‖_F² − b², which the flow keeps."""
        return float(self.A.square().sum()) - self.b**2

    def __repr__(self) -> str:
        return f"Block({len(self.A)} × {len(self.A)}, ‖A‖ = {float(self.A.norm()):.4g}, b = {self.b:.4g})"


Theta: TypeAlias = Weights | Block | Sequence[Array]
"""(U, V), both D×D, or (A, b) with b a number."""


def as_theta(task: InContextTask, theta: Theta) -> Weights | Block:
    """(A, b) with b a number is a Block, for regression; (U, V) are Weights. In float64."""
    if len(theta) != 2:
        raise InputError(f"theta0 must be a pair, (U, V) or (A, b), got {shown(theta)}.")
    first, second = (as_float(v, n).double() for v, n in zip(theta, ("U or A", "V or b"), strict=True))
    D = task.token_dim
    if second.ndim == 0:
        dim = regression(task, "The block form (A, b)").dim
        if first.shape != (dim, dim):
            raise InputError(f"A must be {dim}×{dim} for {task!r}, got shape {tuple(first.shape)}.")
        return Block(first, float(second))
    for name, matrix in (("U", first), ("V", second)):
        if matrix.shape != (D, D):
            raise InputError(
                f"{name} must be {D}×{D} for {task!r}, whose tokens have {D} coordinates, got shape {tuple(matrix.shape)}."
            )
    return Weights(first, second)


def regression(task: InContextTask, what: str) -> LinearRegression:
    """The task itself when it is linear regression."""
    if not isinstance(task, LinearRegression):
        raise InputError(f"{what} is for LinearRegression, got {task!r}: give full weights (U, V).")
    return task


def balanced(task: InContextTask, scale: float | int = 0.1, generator: Seeded | None = None) -> Block:
    """A₀ = scale·ΘΘᵀ/‖ΘΘᵀ‖_F and b₀ = ‖A₀‖_F = scale: a start from which the flow reaches zero risk. Θ is the identity, or
    has Gaussian entries where a generator is given.

    >>> from attnlimit.icl import LinearRegression
    >>> balanced(LinearRegression(4), scale=0.5).conserved
    0.0
    """
    dim, scale = regression(task, "A balanced start").dim, as_positive(scale, "scale")
    theta = torch.eye(dim, dtype=torch.float64)
    if generator is not None:
        theta = torch.randn(dim, dim, generator=as_generator(generator), dtype=torch.float64)
    gram = theta @ theta.T
    return Block(scale * gram / torch.linalg.matrix_norm(gram), scale)


DRAWS, SEED = 4096, 2512_11786
Flat = Float[Tensor, " k"]


def infinite_predictions(task: InContextTask, U: Matrices, V: Matrices, prompts: Prompts) -> Tensor:
    """read(V ∇Λ_w(U query)) for every model and prompt, (*models, B, *k): the prompt's tokens are not used, only its law given its task
    vector w."""
    D = task.token_dim
    check_sizes(prompts.query, query=(prompts.query, D), U=(U, D), V=(V.to(U), D))
    a = prompts.query @ U.mT
    mean = task.tilted_mean(prompts.vector, a)
    return task.read(mean @ V.to(mean).mT)


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
