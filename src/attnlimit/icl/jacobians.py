"""Outputs, their derivatives in A and V, and gradients of a loss through attention, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.errors import InputError
from attnlimit.measures import Measure


class Loss(NamedTuple):
    """A loss by its derivative in the prediction."""

    name: str
    slope: Callable[[Tensor, Tensor], Tensor]
    """(prediction, target) ↦ ∂loss/∂prediction."""

    @classmethod
    def named(cls, name: str) -> Loss:
        """squared: ½(prediction − target)²; logistic: log(1 + e^{−target·prediction})."""
        slopes: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "squared": lambda prediction, target: prediction - target,
            "logistic": lambda prediction, target: -target * torch.sigmoid(-target * prediction),
        }
        if name not in slopes:
            raise InputError(f"loss must be one of {', '.join(slopes)}, got {name!r}.")
        return cls(name, slopes[name])


class Jacobians(NamedTuple):
    """At each query x: output Γ, attended token y and C = V Cov_a(y), with ∂Γ/∂A[E] = C E x and ∂Γ/∂V[E] = E y."""

    x: Float[Tensor, "m dq"]
    output: Float[Tensor, "m dv"]
    y: Float[Tensor, "m d"]
    C: Float[Tensor, "m dv dk"]

    def loss_gradients(
        self, loss: Loss, target: Float[Tensor, "m ..."]
    ) -> tuple[Float[Tensor, "m dk dq"], Float[Tensor, "m dv d"]]:
        """∂loss/∂A = Cᵀr xᵀ and ∂loss/∂V = r yᵀ with r = ∂loss/∂Γ at each query. Targets (m,) are for the last coordinate of
        the output, (m, d_out) for all of them."""
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
