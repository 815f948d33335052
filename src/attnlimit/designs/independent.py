"""Independent keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from attnlimit.designs.draw import Draw, Moments, Rest, Terms, Ways, turned
from attnlimit.inputs import Count, Rising
from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.laplace import transforms

TURN, SHARP = 2.0, 5.0
"""Phase between neighbouring nodes of a density at which half of them is left out, and how quickly more are."""


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

    def transform(self, terms: Terms, n: int, lam: Float[Tensor, " k"]) -> Complex[Tensor, " k"]:
        """ψⁿ, ψ = E e^{iλw(u − t)}."""
        return (n * torch.log1p(_one_key(terms, lam))).exp()

    def ways(self, mass: Float[Tensor, " j"], number: float, n: int) -> Ways:
        """n! Π mass^c/c!."""
        c = torch.arange(n + 1, dtype=mass.dtype, device=mass.device)
        return Ways(torch.xlogy(c, mass[:, None]) - torch.lgamma(c + 1), n, -math.lgamma(n + 1))


def _one_key(terms: Terms, lam: Float[Tensor, " k"]) -> Complex[Tensor, " k"]:
    """ψ − 1. Nodes of a density whose phases are too far from their neighbours' to stand for what lies between are left out: there
    the phases turn so fast that their average is nothing."""
    beside = lam.new_zeros(1, 1)
    if terms.around is not None and bool((terms.reach > 0).any()):
        beside = terms.around(lam[:, None] * terms.reach)
    add = _compiled_keys if has_numba() and lam.device.type == "cpu" else _plain_keys
    return add(lam, terms.y, terms.gap, terms.mass, beside)


def _plain_keys(lam: Tensor, y: Tensor, gap: Tensor, mass: Tensor, beside: Tensor) -> Tensor:
    """Σ mass ((1 + beside) e^{iλy} there − 1), there from 1 to 0 as λ gap grows."""
    change = turned(lam[:, None] * y)
    there = torch.special.erfc(SHARP * (lam[:, None] * gap / TURN).clamp_min(1e-300).log()) / 2
    change = there * (change * (1 + beside) + beside) + (there - 1)
    return change @ mass.to(change.dtype)


def _compiled_keys(lam: Tensor, y: Tensor, gap: Tensor, mass: Tensor, beside: Tensor) -> Tensor:
    out = torch.zeros(len(lam), 2, dtype=torch.float64)
    run_compiled(_accumulate, len(lam), *(part.contiguous() for part in (lam, y, gap, mass, beside)), out)
    return torch.view_as_complex(out)


def _accumulate(start: int, stop: int, lam: Any, y: Any, gap: Any, mass: Any, beside: Any, out: Any) -> None:
    spreads = beside.shape[1] > 1
    for k in range(start, stop):
        real = imaginary = 0.0
        for j in range(len(y)):
            if mass[j] == 0.0:
                continue
            turn, there = lam[k] * gap[j], 1.0
            if turn > 4.5:
                real -= mass[j]
                continue
            if turn > 0.89:
                there = 0.5 * math.erfc(5.0 * math.log(turn / 2.0))
            half = math.sin(0.5 * lam[k] * y[j])
            a, b = -2.0 * half * half, math.sin(lam[k] * y[j])
            if spreads:
                r = beside[k, j]
                a, b = a * (1.0 + r) + r, b * (1.0 + r)
            real += mass[j] * (there * a + there - 1.0)
            imaginary += mass[j] * there * b
        out[k, 0], out[k, 1] = real, imaginary
