"""Heads as a specification names them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.errors import InputError
from attnlimit.measures import Measure
from attnlimit.rates import horizon
from attnlimit.studies.fields import Fields, File, Seed
from attnlimit.studies.laws import Matrix, array


class Identity(Fields):
    """A = cI with horizon H on the law, values are the keys."""

    name: Literal["identity"]
    horizon: NonNegativeFloat

    def build(self, law: Measure, like: Tensor) -> Head:
        return _with_horizon(torch.eye(law.dim).to(like), None, law, self.horizon)


class Random(Fields):
    """Q, K, V with entries N(0, 1/d), A = KᵀQ scaled to horizon H on the law."""

    name: Literal["random"]
    horizon: NonNegativeFloat
    seed: Seed = 0

    def build(self, law: Measure, like: Tensor) -> Head:
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.randn(3, law.dim, law.dim, generator=generator, dtype=torch.float64)
        Q, K, V = (draws / law.dim**0.5).to(like)
        return _with_horizon(K.T @ Q, V, law, self.horizon)


class Given(Fields):
    """A and V themselves, or files with them; `kappa` multiplies A."""

    name: Literal["matrix"]
    A: Matrix | File
    V: Matrix | File | None = None
    kappa: PositiveFloat = 1.0

    def build(self, law: Measure, like: Tensor) -> Head:
        values = None if self.V is None else array(self.V, like)
        return Head(array(self.A, like), values).scaled(self.kappa)


HeadSpec: TypeAlias = Annotated[Identity | Random | Given, Field(discriminator="name")]


def _with_horizon(A: Tensor, V: Tensor | None, law: Measure, wanted: float) -> Head:
    unit = float(horizon(Head(A, V), law))
    if not unit > 0:
        raise InputError(f"No multiple of A has horizon {wanted:g}: the scores of {law!r} do not spread.")
    return Head(A * (wanted / unit), V)
