"""Weights of a one-head model: all of them, or the block that in-context regression uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.icl.tasks import InContextTask, LinearRegression
from attnlimit.inputs import Array, as_float, as_generator, as_positive


class Weights(NamedTuple):
    """Score matrix U and value matrix V, both D×D."""

    U: Float[Tensor, "D D"]
    V: Float[Tensor, "D D"]

    def embed(self) -> Weights:
        """These themselves; see `Block.embed`."""
        return self


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


Theta: TypeAlias = Weights | Block | Sequence[Array]
"""(U, V), both D×D, or (A, b) with b a number."""


def as_theta(task: InContextTask, theta: Theta) -> Weights | Block:
    """(A, b) with b a number is a Block, for regression; (U, V) are Weights. In float64."""
    if len(theta) != 2:
        raise InputError(f"theta0 must be a pair, (U, V) or (A, b), got {theta!r}.")
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


def balanced(
    task: InContextTask, scale: float | int = 0.1, generator: torch.Generator | int | None = None
) -> Block:
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
