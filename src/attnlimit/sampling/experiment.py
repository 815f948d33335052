"""What every statistic gives: a row of errors for each replicate, and words for how it was got."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.sampling.reference import map_reference
from attnlimit.sampling.replicates import Plan


class Row(NamedTuple):
    """One replicate, an entry for each n: squared errors, errors where known, starts that agreed (supremum), and
    what is known to vary with the squared error and to have expectation 0."""

    squares: Float[Tensor, " n"]
    norms: Float[Tensor, " n"] | None
    agreed: Int[Tensor, " n"] | None = None
    control: Float[Tensor, " n"] | None = None


@dataclass(frozen=True, eq=False)
class Experiment(ABC):
    """A statistic of attention's error in the setting of `plan`."""

    plan: Plan

    @property
    def reference(self) -> str:
        """What the truth was, in words."""
        return map_reference(self.plan.limit)

    @property
    @abstractmethod
    def method(self) -> str:
        """How a replicate is measured, in words."""

    @abstractmethod
    def row(self, generator: torch.Generator) -> Row:
        """One replicate."""

    def drawn(self) -> str:
        """How keys are drawn, in words."""
        if self.plan.policy == "window":
            return f"window of {self.plan.width} keys and random others, nested"
        nesting = "drawn for each n apart" if self.plan.policy == "stratified" else "nested prefixes"
        return nesting if self.plan.policy == "iid" else f"{self.plan.policy} keys, {nesting}"
