"""What the finite-n error depends on: for each query, the joint law of the score and the value, as atoms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Around: TypeAlias = Callable[[Tensor], Tensor]
"""r (…, j) ↦ E e^{irξ} − 1, ξ what a value has beside the mean of its atom, scaled to variance 1."""


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

    def squares(self) -> Float[Tensor, "m j"]:
        """Mean square distance of the atom's values from Γ."""
        return (distances(self.mean, self.limit) + self.spread).clamp_min(0)

    def double(self) -> Atoms:
        return Atoms(*(part.double() for part in self[:5]), *self[5:])


class KeptSet(NamedTuple):
    """Keys that are always attended to: W = Σ e^{z}, in log, and the mean of v − Γ under their weights."""

    log_weight: Float[Tensor, " m"]
    mean_error: Float[Tensor, "m p"]


def distances(mean: Float[Tensor, "#m j p"], limit: Float[Tensor, "m p"]) -> Float[Tensor, "m j"]:
    """‖mean − limit‖², by the product, so that no third array of the size of `mean` is made."""
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
