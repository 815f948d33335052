"""Neighbouring keys."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from attnlimit.designs.draw import Draw, check_enough, uniform
from attnlimit.inputs import Count, Rising


@dataclass(frozen=True)
class Block(Draw):
    """n neighbours, starting at a uniformly random place among the N − n + 1 possible.

    One uniform u serves all n, with start ⌊u(N − n + 1)⌋, so that a smaller block lies in a larger one.
    """

    name, words = "block", "neighbouring keys"

    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        check_enough(population, n)
        u = uniform(1, generator)
        starts = [min(int(u * (population - size + 1)), population - size) for size in n]
        everything = torch.arange(population, device=generator.device)
        order = everything[starts[0] : starts[0] + n[0]]
        blocks = [order]
        for (start, size), (wider, larger) in pairwise(zip(starts, n, strict=True)):
            before, after = everything[wider:start], everything[start + size : wider + larger]
            order = torch.cat([order, before, after])
            blocks.append(order)
        return blocks
