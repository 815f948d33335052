"""What is measured of the error: a statistic, and its experiment, which gives a row of errors for each replicate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.designs import Independent
from attnlimit.sampling.setup import Setup


class Row(NamedTuple):
    """One replicate, an entry for each n: squared errors, errors where known, starts that agreed (supremum), and
    what is known to vary with the squared error and to have expectation 0."""

    squares: Float[Tensor, " n"]
    norms: Float[Tensor, " n"] | None
    agreed: Int[Tensor, " n"] | None = None
    control: Float[Tensor, " n"] | None = None


@dataclass(frozen=True)
class Statistic(ABC):
    """What is measured of attention's error. A new one is a subclass with its experiment, in a file of this folder."""

    name: ClassVar[str]

    @abstractmethod
    def experiment(self, setup: Setup) -> Experiment:
        """The experiment in this setup, or what is wrong with it there."""

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{value:g}" for value in asdict(self).values())])

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, eq=False)
class Experiment(ABC):
    """A statistic of attention's error in a setup."""

    setup: Setup

    @property
    def reference(self) -> str:
        """What the truth was, in words."""
        return self.setup.law.provenance

    @property
    @abstractmethod
    def method(self) -> str:
        """How a replicate is measured, in words."""

    @abstractmethod
    def row(self, generator: torch.Generator) -> Row:
        """One replicate."""

    def drawn(self) -> str:
        """How keys are drawn, in words."""
        sampling = self.setup.sampling
        nesting = "nested prefixes" if sampling.draw.nested else "drawn for each n apart"
        plain = isinstance(sampling.draw, Independent) and not sampling.kept
        return nesting if plain else f"{sampling}, {nesting}"
