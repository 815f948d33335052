"""Means of fourth powers over the fourth power of a sum of weights, for independent keys.

For functions f₁ … f₄ of a key, W = Σ w_i and F_m = Σ w_i f_m(i), the identity 1/W⁴ = ⅙ ∫ t³ e^{−tW} dt gives

    E F₁F₂F₃F₄/W⁴ = ⅙ ∫ t³ Σ_π n(n−1)…(n−|π|+1) φ^{n−|π|} Π_{B∈π} E[w^{|B|} Π_{m∈B} f_m e^{−tw}] dt

over the 15 partitions π of {1, 2, 3, 4}: which of the four keys are the same. φ = E e^{−tw}.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.atoms import HEAVY
from attnlimit.numerics.laplace import FAST_START, STEP

Factor = Float[Tensor, "j e"] | None
"""f at each atom, for several cases at once; None: 1."""


def partitions(items: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """All ways to part some items into blocks.

    >>> len(list(partitions(range(4))))
    15
    """
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for some in partitions(rest):
        yield [(first,), *some]
        for k, block in enumerate(some):
            yield [*some[:k], (first, *block), *some[k + 1 :]]


@dataclass(frozen=True, eq=False)
class Quartic:
    """The t-grid for atoms of one query, and e^{−tw} on it."""

    powers: tuple[Float[Tensor, "t j"], ...]
    """mass · (tw)^k e^{−tw}, k = 1 … 4."""
    log_phi: Float[Tensor, " t"]

    @classmethod
    def of(cls, scores: Float[Tensor, " j"], mass: Float[Tensor, " j"], n_max: int) -> Quartic:
        total = float(torch.logsumexp(scores + mass.log(), 0)) + math.log(n_max)
        low, high = -total - FAST_START, float(-scores[mass > 1e-16].min()) + 4.0
        tau = torch.arange(low, high, STEP, dtype=torch.float64)
        y = (tau[:, None] + scores).clamp_max(HEAVY).exp()
        shrink = torch.expm1(-y)
        log_phi = torch.log1p((shrink @ mass).clamp_min(-1.0)).clamp_min(-1e4)
        seen = (shrink + 1) * mass
        return cls(tuple(seen * y**k for k in range(1, 5)), log_phi)

    def mean(self, factors: Sequence[Factor], n: Sequence[int]) -> Float[Tensor, "n e"]:
        """E F₁F₂F₃F₄/W⁴ at each n, for four factors."""
        by_parts: dict[int, Tensor] = {}
        for partition in partitions(range(4)):
            product = math.prod(
                (self._block([factors[m] for m in block]) for block in partition), start=torch.ones(1)
            )
            by_parts[len(partition)] = by_parts.get(len(partition), torch.zeros(1)) + product
        found = []
        for size in n:
            total = torch.zeros(1)
            for parts, value in by_parts.items():
                if size >= parts:
                    chance = float(math.perm(size, parts)) * torch.exp((size - parts) * self.log_phi)
                    total = total + chance @ value
            found.append(STEP / 6 * total)
        return torch.stack(found)

    def _block(self, some: Sequence[Factor]) -> Float[Tensor, "t e"]:
        here = [factor for factor in some if factor is not None]
        product = math.prod(here[1:], start=here[0]) if here else torch.ones_like(self.powers[0][0])[:, None]
        return self.powers[len(some) - 1] @ product
