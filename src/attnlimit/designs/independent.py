"""Independent keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnlimit.designs.draw import Draw, Moments, Rest
from attnlimit.doors import door
from attnlimit.inputs import Count, Rising
from attnlimit.numerics.laplace import transforms


@door
@dataclass(frozen=True)
class Independent(Draw):
    """n independent uniform keys: the same one may come twice. Tokens of a law are drawn so."""

    name, words, repeats = "independent", "independent keys", True

    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        order = torch.randint(population, (n[-1],), generator=generator, device=generator.device)
        return [order[:size] for size in n]

    def exact(self, rest: Rest, n_max: int) -> Moments:
        """∫ t e^{−tW_S} {‖U_S‖²φⁿ + 2n U_S·E[w u e^{−tw}]φ^{n−1} + n E[w²‖u‖²e^{−tw}]φ^{n−1} + n(n−1)‖E[w u e^{−tw}]‖²φ^{n−2}} dt,
        φ = E e^{−tw}: see numerics.laplace."""
        return transforms(rest.atoms, rest.kept, n_max).moments
