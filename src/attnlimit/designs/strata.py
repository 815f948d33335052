"""One key of every stretch of the text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnlimit.designs.draw import Draw, check_enough, uniform
from attnlimit.inputs import Count, Rising


@dataclass(frozen=True)
class Strata(Draw):
    """One random key in each of n strata of neighbours, whose sizes differ by at most one. Not nested."""

    name, words, nested = "strata", "keys of n strata", False

    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        check_enough(population, n)
        return [_one_per_stratum(population, size, generator) for size in n]


def _one_per_stratum(population: int, size: int, generator: torch.Generator) -> Tensor:
    edges = torch.arange(size + 1, device=generator.device) * population // size
    width = edges.diff()
    inside = (uniform(size, generator) * width).long()
    return edges[:-1] + torch.minimum(inside, width - 1)
