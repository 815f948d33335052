"""What the finite-n error depends on: for each query, the joint law of the score and the value, as atoms."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


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

    def squares(self) -> Float[Tensor, "m j"]:
        """Mean square distance of the atom's values from Γ."""
        return (distances(self.mean, self.limit) + self.spread).clamp_min(0)

    def double(self) -> Atoms:
        scores, log_mass, mean, spread, limit = (part.double() for part in self[:5])
        return Atoms(scores, log_mass, mean, spread, limit, self.smooth)


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
    )
