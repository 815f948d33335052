"""The first keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnlimit.designs.draw import Draw, check_enough
from attnlimit.inputs import Count, Rising


@dataclass(frozen=True)
class Prefix(Draw):
    """The first n keys in the text's own order; nothing is random."""

    name, words = "prefix", "first keys"

    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        check_enough(population, n)
        order = torch.arange(population, device=generator.device)
        return [order[:size] for size in n]
