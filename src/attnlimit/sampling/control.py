"""A control for the errors of output moments: what the tokens' own mean and covariance explain.

Gaussian tokens make the limit Γ(x) = Bx + c with B = VΣA, and its output law is N(Bm + c, BΣBᵀ). Were the n tokens
Gaussian with their own mean m + δm and covariance Σ + δΣ, the output law would move by, to first order,

    mean: (V + B) δm        covariance: pqᵀ + qpᵀ + rrᵀ averaged over tokens, minus its expectation

with p = Vδ, q = BΣAᵀδ, r = Bδ and δ = y − m. Both are averages of n independent centred terms h(y), so the square
of their norm has expectation E‖h‖²/n exactly, and it goes up and down with the squared error itself.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.measures import Gaussian
from attnlimit.sampling.powers import Power
from attnlimit.sampling.replicates import Plan, Sample

LEAST_REPLICATES = 8
"""With fewer, what the control explains cannot be told from chance."""


class GaussianControl:
    """‖(1/n) Σ h(y_i)‖² − E‖h‖²/n for the mean (`order` 1) or the covariance (2) of the output law."""

    def __init__(self, plan: Plan, order: int) -> None:
        law, affine = plan.law, plan.limit.affine()
        if not isinstance(law, Gaussian) or affine is None:
            raise TypeError(f"{law!r} is not Gaussian.")
        self.order, self.law = order, law
        self.V, self.B, A = plan.head.V.double(), affine[0].double(), plan.head.A.double()
        self.cov = law.covariance.double()
        self.Q = self.B @ self.cov @ A.T

    @staticmethod
    def fits(plan: Plan, power: Power | None) -> bool:
        """Whether there is a control: Gaussian tokens that are their own queries, first or second moments."""
        gaussian = isinstance(plan.law, Gaussian) and plan.self_attention and plan.limit.affine() is not None
        return gaussian and (power is None or power.order == 1)

    def image(self, total: Float[Tensor, " p"]) -> Tensor:
        """The linear map that takes δ or δδᵀ (flattened) to h, before centring."""
        if self.order == 1:
            return (self.V + self.B) @ total
        moved = total.view(self.law.dim, self.law.dim)
        cross = self.V @ moved @ self.Q.T
        return cross + cross.T + self.B @ moved @ self.B.T

    @cached_property
    def expected(self) -> float:
        """E‖h‖², with E[(δᵀFδ)(δᵀGδ)] = tr(FΣ) tr(GΣ) + tr(FΣ(G + Gᵀ)Σ) for the covariance."""
        S = self.cov
        if self.order == 1:
            P = self.V + self.B
            return float((P @ S @ P.T).trace())

        def product(F: Tensor, G: Tensor) -> Tensor:
            return (F @ S).trace() * (G @ S).trace() + (F @ S @ (G + G.T) @ S).trace()

        p, q, r = self.V, self.Q, self.B
        second = 2 * product(p.T @ p, q.T @ q) + 2 * product(p.T @ q, p.T @ q)
        second = second + product(r.T @ r, r.T @ r) + 4 * product(p.T @ r, q.T @ r)
        return float(second - self.image(S.flatten()).square().sum())

    def row(self, samples: list[Sample]) -> Float[Tensor, " n"]:
        """The control at every n of a replicate; each token is looked at once."""
        power, centre = Power(self.order), self.law.mean
        mean = self.image(self.cov.flatten()) if self.order == 2 else 0.0
        total, seen, row = torch.zeros(self.law.dim**self.order, dtype=torch.float64), 0, []
        for sample in samples:
            if sample.tokens is None:
                raise TypeError("A control needs the tokens.")
            total = total.to(centre.device) + power.total(sample.tokens[seen:] - centre)
            seen = len(sample.tokens)
            row.append((self.image(total / seen) - mean).square().sum() - self.expected / seen)
        return torch.stack(row)


def controlled(
    squares: Float[Tensor, "replicates n"], controls: Float[Tensor, "replicates n"]
) -> Float[Tensor, "replicates n"]:
    """squares − β·controls, which has the same expectation; β of a replicate is the regression coefficient over the
    others, and so independent of it."""
    count = len(squares)
    s, c = squares - squares.mean(0), controls - controls.mean(0)
    # Leaving one row out of centred sums takes off its own product times R/(R − 1).
    share = count / (count - 1)
    cross = (s * c).sum(0) - share * s * c
    spread = c.square().sum(0) - share * c.square()
    return squares - cross / spread * controls
