"""What every way of drawing keys has: a sampler, and where it is known the exact error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.errors import NotKnown
from attnlimit.inputs import Count, Rising
from attnlimit.numerics.atoms import Atoms, KeptSet

ATOMS_AT_ONCE = 640
"""Of all queries of a block together."""
Moments: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(n (1 or m, k), how many keys each drawn one stands for (m, k)) ↦ E‖Γ_n − Γ‖² (m, k) and E Γ_n − Γ (m, k, p)."""


class Rest(NamedTuple):
    """What is left to draw from once the kept keys are set aside, for each of m queries."""

    atoms: Atoms
    kept: KeptSet | None
    number: Float[Tensor, "m 1"]
    """How many keys; infinite for a law."""

    def of(self, rows: Bool[Tensor, " m"] | Int[Tensor, " k"]) -> Rest:
        """Those of some queries."""
        scores, log_mass, mean, spread, limit, smooth = self.atoms
        shared = len(mean) == 1 < len(limit)
        mean, spread = (mean, spread) if shared else (mean[rows], spread[rows])
        atoms = Atoms(scores[rows], log_mass[rows], mean, spread, limit[rows], smooth)
        kept = None if self.kept is None else KeptSet(*(part[rows] for part in self.kept))
        return Rest(atoms, kept, self.number[rows])


@dataclass(frozen=True)
class Draw(ABC):
    """A way of drawing n keys of a population. A new one is a file in this folder with a subclass: its name is then known
    to studies, budgets and the command line."""

    name: ClassVar[str]
    """As studies and files write it."""
    words: ClassVar[str]
    """How the keys are told of: "independent keys"."""
    repeats: ClassVar[bool] = False
    """Whether a key may come twice, so that n may exceed their number."""
    nested: ClassVar[bool] = True
    """Whether the keys for a smaller n come first in those for a larger one."""

    @abstractmethod
    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        """The places of the keys for every n, n increasing."""

    def weigh(self, population: int, n: int, places: Int[Tensor, " k"]) -> Float[Tensor, " k"] | None:
        """What each drawn key weighs beside the others; None: all alike."""
        return None

    def exact(self, rest: Rest, n_max: int) -> Moments:
        """The moments of the error as functions of n, for all n up to n_max."""
        raise NotKnown(
            f"The error of {self.words} is not known exactly: use measure_convergence (Monte Carlo) with this sampling, or "
            "draw independent or different keys."
        )


def in_blocks(rest: Rest, exact: Callable[[Rest], Moments]) -> Moments:
    """The moments of all queries, from those of a few at a time."""
    size = max(1, ATOMS_AT_ONCE // min(rest.atoms.scores.shape[1], 128))
    blocks = torch.arange(len(rest.number), device=rest.number.device).split(size)
    ready = [exact(rest.of(rows)) for rows in blocks]

    def moments(n: Tensor, stands_for: Tensor) -> tuple[Tensor, Tensor]:
        n = n.expand(len(stands_for), -1)
        each = [one(n[rows], stands_for[rows]) for one, rows in zip(ready, blocks, strict=True)]
        square, bias = (torch.cat(part) for part in zip(*each, strict=True))
        return square, bias

    return moments


def uniform(count: int, generator: torch.Generator) -> Float[Tensor, " count"]:
    """Uniform numbers in [0, 1), in double precision."""
    return torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)
