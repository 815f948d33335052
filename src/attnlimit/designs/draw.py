"""What every way of drawing keys has: a sampler, and where it is known the exact error."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from attnlimit.errors import InputError, NotKnown
from attnlimit.inputs import Count, Rising
from attnlimit.numerics.atoms import Around, Atoms, KeptSet
from attnlimit.numerics.condensed import Condensed

ATOMS_AT_ONCE = 640
"""Of all queries of a block together."""
QUERIES_AT_ONCE = 24
"""Of a block, where they are alike."""
Moments: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(n (1 or m, k), how many keys each drawn one stands for (m, k)) ↦ E‖Γ_n − Γ‖² (m, k) and E Γ_n − Γ (m, k, p)."""


class Rest(NamedTuple):
    """What is left to draw from once the kept keys are set aside, for each of m queries."""

    atoms: Atoms | Condensed
    """Condensed where they are binned by score."""
    kept: KeptSet | None
    number: Float[Tensor, "m 1"]
    """How many keys; infinite for a law."""
    square_only: bool = False
    """Whether nobody asks for the bias: it may then be zero."""

    def of(self, rows: Bool[Tensor, " m"] | Int[Tensor, " k"]) -> Rest:
        """Those of some queries."""
        kept = None if self.kept is None else KeptSet(*(part[rows] for part in self.kept))
        return Rest(self.atoms.of(rows), kept, self.number[rows], self.square_only)

    def key_by_key(self, what: str) -> Atoms:
        """Atoms that are keys, for what is of keys one by one."""
        if not isinstance(self.atoms, Atoms):
            raise InputError(
                f"{what} are of keys one by one, and these are binned by score: use binned=False."
            )
        return self.atoms


class Terms(NamedTuple):
    """What the R keys that may be drawn add to Σ w (u − t), u the error of a value in one direction, w its weight: at most zero
    in sum where the error is at most t."""

    y: Float[Tensor, " j"]
    """w (u − t)"""
    reach: Float[Tensor, " j"]
    """w times the standard deviation of u within the atom."""
    mass: Float[Tensor, " j"]
    number: float
    """R; infinite for a law."""
    around: Around | None
    gap: Float[Tensor, " j"]
    """How far nodes of a density are from their neighbours; 0 for atoms."""


class Ways(NamedTuple):
    """How likely it is that each of J different keys is drawn c times, c = 0, 1, …: all of them so with probability
    exp(Σ log_ways[j, c_j] − log_all), where Σ c_j is `total` (None: whatever but zero)."""

    log_ways: Float[Tensor, "j c"]
    total: int | None
    log_all: float


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

    def transform(self, terms: Terms, n: int, lam: Float[Tensor, " k"]) -> Complex[Tensor, " k"]:
        """E e^{iλ Σ w(u − t)} over the drawn keys, from which the law of the error comes."""
        raise self._no_law()

    def ways(self, mass: Float[Tensor, " j"], number: float, n: int) -> Ways:
        """The probabilities of all outcomes, for keys that are drawn with probability `mass`, or mass·number of them alike."""
        raise self._no_law()

    def _no_law(self) -> NotKnown:
        return NotKnown(
            f"The law of the error of {self.words} is not known exactly: draw independent or different keys, or by coins."
        )


def check_enough(population: int, n: Sequence[int]) -> None:
    if max(n) > population:
        raise InputError(f"{max(n):,} different keys cannot be drawn of {population:,}: use a smaller n.")


def in_blocks(rest: Rest, exact: Callable[[Rest], Moments]) -> Moments:
    """The moments of all queries, from those of a few at a time."""
    shared = isinstance(rest.atoms, Condensed) and rest.atoms.alike
    size = QUERIES_AT_ONCE if shared else max(1, ATOMS_AT_ONCE // min(rest.atoms.scores.shape[1], 128))
    every = torch.arange(len(rest.number), device=rest.number.device)
    blocks = every.tensor_split(math.ceil(len(every) / size))
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


def turned(phase: Float[Tensor, "*s"]) -> Complex[Tensor, "*s"]:
    """e^{iφ} − 1, to full precision at small φ."""
    return torch.complex(-2 * (phase / 2).sin().square(), phase.sin())


def log_sets(number: Tensor, n: Tensor) -> Tensor:
    """log C(R, n)."""
    return torch.lgamma(number + 1) - torch.lgamma(n + 1) - torch.lgamma((number - n).clamp_min(0) + 1)
