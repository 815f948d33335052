"""Outputs, their derivatives in A and V, and gradients of a loss through attention, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.errors import InputError
from attnlimit.icl.tasks.base import LossKind
from attnlimit.inputs import as_one_of
from attnlimit.measures import Measure


@dataclass(frozen=True)
class Loss:
    """ "squared": ½(prediction − target)²; "logistic": log(1 + e^{−target·prediction}), targets ±1."""

    kind: LossKind
    target: Callable[[Tensor], Tensor]
    """Queries (m, d_query) ↦ targets, (m,) for the last output coordinate or (m, d_out) for all of them."""

    def __post_init__(self) -> None:
        as_one_of(self.kind, LossKind, "loss")

    def slope(self, prediction: Tensor, target: Tensor) -> Tensor:
        """∂loss/∂prediction."""
        if self.kind == "squared":
            return prediction - target
        return -target * torch.sigmoid(-target * prediction)


class Jacobians(NamedTuple):
    """At each query x: output Γ, attended token y and C = V Cov_a(y), with ∂Γ/∂A[E] = C E x and ∂Γ/∂V[E] = E y."""

    x: Float[Tensor, "m dq"]
    output: Float[Tensor, "m dv"]
    y: Float[Tensor, "m d"]
    C: Float[Tensor, "m dv dk"]

    def loss_gradients(self, loss: Loss) -> tuple[Float[Tensor, "m dk dq"], Float[Tensor, "m dv d"]]:
        """∂loss/∂A = Cᵀr xᵀ and ∂loss/∂V = r yᵀ with r = ∂loss/∂Γ at each query."""
        target = loss.target(self.x)
        if target.shape == self.output.shape:
            r = loss.slope(self.output, target)
        elif target.shape == self.output.shape[:-1]:
            r = torch.zeros_like(self.output)
            r[:, -1] = loss.slope(self.output[:, -1], target)
        else:
            m, dv = self.output.shape
            raise InputError(
                f"target must give shape ({m},) or ({m}, {dv}) for {m} queries, got {tuple(target.shape)}."
            )
        in_A = (self.C.mT @ r[..., None]) * self.x[..., None, :]
        return in_A, r[..., None] * self.y[..., None, :]


def jacobians(head: Head, measure: Measure, x: Float[Tensor, "m dq"]) -> Jacobians:
    """For tokens y and Cov_a are softmax-weighted averages (ȳ_p, C_p); for a law ∇Λ(Ax) and ∇²Λ(Ax)."""
    a = head.score_vector(x)
    y, cov = measure.tilted_mean(a), measure.tilted_cov(a)
    return Jacobians(x, head.read(y), y, head.read_linear(cov.mT.contiguous()).mT)
