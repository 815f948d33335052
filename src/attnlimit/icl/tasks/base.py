"""A task: a law over prompts, with the law of a prompt's tokens given its task vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from attnlimit.errors import InputError, NotKnown
from attnlimit.inputs import Array, Count, Seeded, as_float, as_generator, as_one_of
from attnlimit.measures import Measure
from attnlimit.measures.gaussian import checked_cov


def ar1(dim: Count, rho: float) -> Float[Tensor, "d d"]:
    """Σ_ij = ρ^|i−j|.

    >>> ar1(3, 0.5)
    tensor([[1.0000, 0.5000, 0.2500],
            [0.5000, 1.0000, 0.5000],
            [0.2500, 0.5000, 1.0000]], dtype=torch.float64)
    """
    if not -1 < rho < 1:
        raise InputError(
            f"rho must lie strictly between −1 and 1, got {rho!r}: else ρ^|i−j| is no positive definite covariance."
        )
    index = torch.arange(dim, dtype=torch.float64)
    return torch.tensor(rho, dtype=torch.float64) ** (index[:, None] - index).abs()


def as_cov(value: Array, dim: int | None, name: str) -> Float[Tensor, "d d"]:
    """A symmetric positive definite matrix in float64, from a number (times I), a vector (diagonal) or a matrix."""
    cov = as_float(value, name).detach().double().cpu()
    if cov.ndim == 0:
        if dim is None:
            raise InputError(f"{name} is a number, which tells no dimension: give dim=.")
        cov = cov.expand(dim)
    size = cov.shape[-1] if dim is None else dim
    cov = checked_cov(torch.diag(cov) if cov.shape == (size,) else cov, size, name)
    values = torch.linalg.eigvalsh(cov)
    if not 1e-40 <= float(values[-1].abs()) <= 1e40:
        raise InputError(
            f"{name} has variances up to {float(values[-1]):.3g}, and powers of them are needed: choose units in which they "
            "lie between 1e-40 and 1e40."
        )
    if float(values[0]) <= 1e-12 * float(values[-1].abs()):
        raise InputError(
            f"{name} is not positive definite: its least eigenvalue is {float(values[0]):.3g} "
            f"(largest {float(values[-1]):.3g}). The solution needs its inverse: drop the directions without variance."
        )
    return cov


LossKind: TypeAlias = Literal["squared", "logistic"]
Vectors: TypeAlias = Float[Tensor, "B p"]
"""A task vector for each prompt."""
Tilts: TypeAlias = Float[Tensor, "*batch B D"]
Matrices: TypeAlias = Float[Tensor, "*models D D"]


class Prompts(NamedTuple):
    """B prompts of L tokens each."""

    tokens: Float[Tensor, "B L D"]
    query: Float[Tensor, "B D"]
    target: Float[Tensor, "B ..."]
    """What is to be predicted: (B,) numbers or (B, k) vectors."""
    vector: Float[Tensor, "B p"]
    """The task vector of each prompt, which the model does not see."""

    def __repr__(self) -> str:
        count, length, dim = self.tokens.shape
        return f"Prompts({count:,} of {length:,} tokens, {dim}-d, {self.tokens.dtype})"


class Floor(NamedTuple):
    """The least risk that any predictor has, or a bound on it, and how it was got."""

    value: float
    standard_error: float
    kind: str

    def __float__(self) -> float:
        return self.value


def as_vector(vector: Tensor, size: int) -> Tensor:
    """One task vector, of so many finite numbers."""
    vector = as_float(vector, "vector")
    if vector.shape != (size,):
        raise InputError(f"vector must be one task vector, of shape ({size},), got {tuple(vector.shape)}.")
    return vector


def check_sizes(like: Tensor, **given: tuple[Tensor, int]) -> None:
    """Points by name, each with the dimension it must have, of like's dtype and device. Whether they are finite is not looked at: flows
    that diverge say so themselves."""
    for name, (points, size) in given.items():
        if points.shape[-1:] != (size,):
            raise InputError(
                f"{name} must have shape (…, {size}), got {tuple(points.shape)}: the last axis is the dimension of this task's."
            )
        if (points.dtype, points.device) != (like.dtype, like.device):
            raise InputError(
                f"{name} is {points.dtype} on {points.device}, but the rest is {like.dtype} on {like.device}: convert one of them."
            )


def normal(*shape: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """White noise on the generator's device."""
    return torch.randn(*shape, generator=generator, dtype=dtype, device=generator.device)


class InContextTask(ABC):
    """A law for the task vector, tokens given it, the query, and the target.

    A model is a head (U, V): its prediction is read(Γ(query)) with Γ = Head(U, V)(prompt tokens), and with an
    infinite prompt Γ = Head(U, V)(prompt_law(vector)), exactly.

    A task of your own gives `token_dim`, `_draw` and `prompt_law`; see docs/own-task.md. `tilted_mean` may be given
    in batched form for speed.
    """

    token_dim: int
    """D, the dimension of tokens, queries and outputs."""
    loss: LossKind = "squared"
    """"squared": ½‖prediction − target‖²; "logistic": log(1 + e^{−target·prediction}), targets ±1."""

    @property
    def name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{self.name}({self.token_dim}-d tokens, {self.loss} loss)"

    # --- what a task gives ------------------------------------------------------------------------

    @abstractmethod
    def _draw(self, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype) -> Prompts: ...

    @abstractmethod
    def prompt_law(self, vector: Tensor) -> Measure:
        """The law of the prompt's tokens given one task vector (p,)."""

    def tilted_mean(self, vectors: Vectors, a: Tilts) -> Tilts:
        """∇Λ_w(a) for each prompt's own law; one law at a time unless a task knows better."""
        laws = [self.prompt_law(vector) for vector in vectors]
        return torch.stack([law.tilted_mean(one) for law, one in zip(laws, a.unbind(-2), strict=True)], -2)

    def read(self, output: Float[Tensor, "*batch D"]) -> Tensor:
        """The prediction in an output: its last coordinate."""
        return output[..., -1]

    def exact_risk(self, U: Matrices, V: Matrices) -> Float[Tensor, "*models"] | None:
        """The infinite-prompt risk in closed form, or None where there is none."""
        return None

    def floor(self, length: int) -> Floor:
        """The least risk at this prompt length, with its kind in words."""
        raise NotKnown(
            f"{self!r} has no floor(length): the least risk is not known. Give its class that method."
        )

    # --- what follows -----------------------------------------------------------------------------

    def draw(
        self, batch: Count, length: Count, generator: Seeded, dtype: torch.dtype = torch.float64
    ) -> Prompts:
        """`batch` independent prompts of `length` tokens, all at once, on the generator's device."""
        return self._draw(batch, length, as_generator(generator), dtype)

    def risk(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of each prediction, shape (*batch,): not averaged."""
        try:
            torch.broadcast_shapes(prediction.shape, target.shape)
        except RuntimeError as problem:
            raise InputError(
                f"prediction and target must have shapes that fit each other, got {tuple(prediction.shape)} and "
                f"{tuple(target.shape)}."
            ) from problem
        if as_one_of(self.loss, LossKind, f"{self.name}.loss") == "logistic":
            return softplus(-target * prediction)
        square = (prediction - target).square() / 2
        numbers = self.read(torch.zeros(self.token_dim)).ndim == 0  # not vectors
        return square if numbers else square.sum(-1)


def floors(task: InContextTask, lengths: tuple[int, ...]) -> tuple[Floor, ...] | None:
    """The floor at each length; None where it is not known."""
    try:
        return tuple(task.floor(length) for length in lengths)
    except NotKnown:
        return None
