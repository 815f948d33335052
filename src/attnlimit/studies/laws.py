"""Token laws as a specification names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from attnlimit import measures
from attnlimit.errors import InputError
from attnlimit.files.arrays import open_rows
from attnlimit.measures import Measure
from attnlimit.studies.fields import Fields, File, Seed

DTYPES = {"float64": torch.float64, "float32": torch.float32}
Dtype: TypeAlias = Literal["float64", "float32"]
Vector: TypeAlias = Annotated[list[float], Field(min_length=1)]
Matrix: TypeAlias = Annotated[list[Vector], Field(min_length=1)]


class Gaussian(Fields):
    """N(mean, cov); cov is a number, a diagonal, a matrix, or a file with one."""

    name: Literal["gaussian"]
    dim: PositiveInt | None = None
    cov: float | Vector | Matrix | File = 1.0
    mean: Vector | None = None

    def build(self, like: Tensor) -> Measure:
        mean = None if self.mean is None else like.new_tensor(self.mean)
        return measures.Gaussian(mean, array(self.cov, like), dim=self.dim)


class Round(Fields):
    """Uniform on a sphere or in a ball."""

    name: Literal["sphere", "ball"]
    dim: PositiveInt
    radius: PositiveFloat = 1.0

    def build(self, like: Tensor) -> Measure:
        make = measures.Sphere if self.name == "sphere" else measures.Ball
        return make(self.dim, self.radius, dtype=like.dtype, device=like.device)


class Box(Fields):
    name: Literal["box"]
    dim: PositiveInt
    half_width: PositiveFloat = 1.0

    def build(self, like: Tensor) -> Measure:
        return measures.Box(self.dim, self.half_width, dtype=like.dtype, device=like.device)


class Rademacher(Fields):
    name: Literal["rademacher"]
    dim: PositiveInt

    def build(self, like: Tensor) -> Measure:
        return measures.Rademacher(self.dim, dtype=like.dtype, device=like.device)


class Signs(Fields):
    """The sum of `count` random signs over √count, on the line: bounded by R = √count, and Gaussian as R → ∞."""

    name: Literal["signs"]
    count: PositiveInt

    def build(self, like: Tensor) -> Measure:
        up = torch.arange(self.count + 1, dtype=torch.float64)
        log_mass = -torch.lgamma(up + 1) - torch.lgamma(self.count - up + 1)
        atoms = (2 * up - self.count) / self.count**0.5
        return measures.Empirical(atoms[:, None].to(like), weights=log_mass.softmax(0).to(like))


class Laplace(Fields):
    name: Literal["laplace"]
    dim: PositiveInt
    scale: PositiveFloat = 1.0

    def build(self, like: Tensor) -> Measure:
        return measures.Laplace(self.dim, self.scale, dtype=like.dtype, device=like.device)


class Mixture(Fields):
    name: Literal["mixture"]
    weights: Vector
    parts: Annotated[list[Law], Field(min_length=1)]

    def build(self, like: Tensor) -> Measure:
        return measures.Mixture(like.new_tensor(self.weights), [part.build(like) for part in self.parts])


class Population(Fields):
    """Tokens themselves: those of a file (.npy or .safetensors), or `tokens` draws of a law."""

    name: Literal["population"]
    tokens: File | PositiveInt
    law: Law | None = None
    seed: Seed = 0

    def build(self, like: Tensor) -> Measure:
        if isinstance(self.tokens, File):
            return measures.Empirical(array(self.tokens, like))
        if self.law is None:
            raise InputError(
                "A population has tokens: {file: …}, or a number of tokens and the law they are drawn from."
            )
        generator = torch.Generator(like.device).manual_seed(self.seed)
        return self.law.build(like).sample(self.tokens, generator=generator)


Law: TypeAlias = Annotated[
    Gaussian | Round | Box | Rademacher | Signs | Laplace | Mixture | Population, Field(discriminator="name")
]
Mixture.model_rebuild()
Population.model_rebuild()


def array(value: float | list[Any] | File, like: Tensor) -> Tensor:
    """Numbers of a specification, or a matrix from a file, as a tensor of like's dtype and device."""
    if isinstance(value, File):
        file = open_rows(value.checked())
        return file.rows(0, file.shape[0]).to(like, copy=True)
    try:
        return like.new_tensor(value)
    except (TypeError, ValueError) as problem:
        raise InputError("A matrix must have rows of equal length.") from problem


def like(dtype: Dtype, device: str) -> Tensor:
    """An empty tensor of the kind that all of a task's tensors have."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"The task asks for device {device}, but this worker has no CUDA device.")
    return torch.empty(0, dtype=DTYPES[dtype], device=device)
