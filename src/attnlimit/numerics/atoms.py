"""What the finite-n error depends on: for each query, the joint law of the score and the value, as atoms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Around: TypeAlias = Callable[[Tensor], Tensor]
"""r (…, j) ↦ E e^{irξ} − 1, ξ what a value has beside the mean of its atom, scaled to variance 1."""


class Precision(NamedTuple):
    """How finely integrals over τ = log t are taken. Every draw of keys, of weight W together, adds a multiple of tW²e^{−tW}
    to a square: what is lost of it at steps of h is 2|Γ(2 + 2πi/h)|, and below tW = e^{−a} it is e^{−2a}/2."""

    step: float
    """In τ, for scores that are smooth on the scale 1."""
    start: float
    """How much earlier than −log(n E w) to begin; `late` where the mean error does not vanish at t = 0 and biases begin like t."""
    late: float
    alone: float
    """How much earlier than where the heaviest key alone weighs 1."""
    end: float
    """log of t w_min where to end."""
    fade: float
    """−log of how unlikely it is that the drawn keys weigh so little, where to end for coins."""


FEW = 2**20
"""Values whose differences from Γ are taken one by one: what has nearly all the attention differs by less than a product tells."""
HEAVY = 6.5
"""log of the largest t w that is told apart: e^{−e^6.5} is 1e-289."""
FINE = Precision(step=0.4, start=12.0, late=20.0, alone=10.0, end=4.0, fade=60.0)
"""Good to 1e-8."""
ROUGH = Precision(step=0.8, start=6.5, late=10.0, alone=5.5, end=3.2, fade=24.0)
"""Good to 5e-4: enough beside keys that are binned by score."""


class Atoms(NamedTuple):
    """For each of m queries, J atoms of the law of (score z, value v): quadrature nodes of a law, tokens, or
    bins of tokens. Within an atom the score is one number; the value has a mean and a spread around it."""

    scores: Float[Tensor, "m j"]
    log_mass: Float[Tensor, "m j"]
    mean: Float[Tensor, "#m j p"]
    """Mean value of the atom."""
    spread: Float[Tensor, "#m j"]
    """Mean square distance of the atom's values from their mean."""
    limit: Float[Tensor, "m p"]
    """Γ, what the error is measured from."""
    smooth: float = 1.0
    """Scale in z on which the scores' law is smooth, at least 1: the τ-grid may be that much coarser."""
    around: Around | None = None
    """How values of one output spread around their atom's mean, where a law knows it."""
    nodes: Bool[Tensor, " j"] | None = None
    """Which atoms are nodes of a density, in order; None: none."""
    parts: tuple[int, ...] | None = None
    """How many atoms each part of a mixture has, side by side; None: it is no mixture."""

    def squares(self) -> Float[Tensor, "m j"]:
        """Mean square distance of the atom's values from Γ."""
        few = self.mean[0].numel() * len(self.limit) <= FEW
        square = self.errors().square().sum(-1) if few else distances(self.mean, self.limit)
        return (square + self.spread).clamp_min(0)

    def errors(self) -> Float[Tensor, "m j p"]:
        """The atom's mean value less Γ."""
        return self.mean - self.limit[:, None, :]

    @property
    def precision(self) -> Precision:
        return FINE

    @property
    def step(self) -> float:
        """Of the τ-grid."""
        return self.precision.step * self.smooth

    @property
    def dim(self) -> int:
        """Of the values."""
        return self.limit.shape[-1]

    def of(self, rows: Tensor | slice) -> Atoms:
        """Those of some queries."""
        shared = len(self.mean) == 1 < len(self.limit)
        mean, spread = (self.mean, self.spread) if shared else (self.mean[rows], self.spread[rows])
        return Atoms(self.scores[rows], self.log_mass[rows], mean, spread, self.limit[rows], *self[5:])

    def reach(self, n_max: int) -> tuple[Tensor, Tensor, Tensor]:
        """log(n_max E w), the heaviest score that n_max keys are likely to have, and the lightest of all."""
        present = self.log_mass > -torch.inf
        likely = self.log_mass > -math.log(n_max) - 22.0  # n_max times its mass above 3e-10
        total = torch.logsumexp(self.scores + self.log_mass, 1) + math.log(n_max)
        heaviest = self.scores.masked_fill(~likely, -torch.inf).amax(1)
        return total, heaviest, self.scores.masked_fill(~present, torch.inf).amin(1)

    def double(self) -> Atoms:
        scores, log_mass, mean, spread, limit = (part.double() for part in self[:5])
        return self._replace(scores=scores, log_mass=log_mass, mean=mean, spread=spread, limit=limit)


class KeptSet(NamedTuple):
    """Keys that are always attended to: W = Σ e^{z}, in log, and the mean of v − Γ under their weights."""

    log_weight: Float[Tensor, " m"]
    mean_error: Float[Tensor, "m p"]


def distances(mean: Float[Tensor, "#m j p"], limit: Float[Tensor, "m p"]) -> Float[Tensor, "m j"]:
    """‖mean − limit‖² to eight digits, by the product, so that no third array of the size of `mean` is made."""
    product = (mean @ limit[..., None])[..., 0] if len(mean) == len(limit) else limit @ mean[0].T
    return (
        torch.linalg.vector_norm(mean, dim=-1).square() - 2 * product + limit.square().sum(-1, keepdim=True)
    )


def join(parts: list[Atoms], limit: Tensor) -> Atoms:
    """The atoms of a mixture: those of its parts, side by side (masses already weighted)."""
    m = len(limit)
    return Atoms(
        torch.cat([part.scores for part in parts], 1),
        torch.cat([part.log_mass for part in parts], 1),
        torch.cat([part.mean.expand(m, -1, -1) for part in parts], 1),
        torch.cat([part.spread.expand(m, -1) for part in parts], 1),
        limit,
        min(part.smooth for part in parts),
        partial(_side_by_side, [(part.around, part.scores.shape[1]) for part in parts]),
        torch.cat(
            [torch.zeros_like(p.scores[0], dtype=torch.bool) if p.nodes is None else p.nodes for p in parts]
        ),
        tuple(size for part in parts for size in part.parts or (part.scores.shape[1],)),
    )


def _side_by_side(parts: list[tuple[Around | None, int]], r: Tensor) -> Tensor:
    each = r.split([size for _, size in parts], -1)
    return torch.cat(
        [
            torch.zeros_like(some) if one is None else one(some)
            for (one, _), some in zip(parts, each, strict=True)
        ],
        -1,
    )
