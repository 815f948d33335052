"""The first keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlimit.designs.draw import Draw


@dataclass(frozen=True)
class Prefix(Draw):
    """The first n keys in the text's own order; nothing is random."""

    name, words = "prefix", "first keys"

    def places(self, population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
        order = torch.arange(population, device=generator.device)
        return [order[:size] for size in n]
