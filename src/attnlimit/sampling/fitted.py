"""Gaussian tokens: attention over the Gaussian fitted to the n tokens, N(m̂, Σ̂), which costs a Gram matrix.

Its map Γ̂(x) = V(m̂ + Σ̂Ax) is close to Γ_n(x) and is known at all n tokens at once, since it is affine: a better
control variate for the queries left out than Γ itself. And what it says of the error goes up and down with the error:
to first order in δm = m̂ − m and δΣ the output law moves by

    mean: (V + B) δm        covariance: pqᵀ + qpᵀ + rrᵀ averaged over tokens, minus its expectation

with B = VΣA, p = Vδ, q = BΣAᵀδ, r = Bδ and δ = y − m. Both are averages of n independent centred terms h(y), so the
square of their norm has expectation E‖h‖²/n exactly, and a multiple of the difference may be taken off any replicate.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.sampling.reference import Power, Reference
from attnlimit.sampling.replicates import Sample
from attnlimit.sampling.statistic import Setup

LEAST_REPLICATES = 8
"""With fewer, what the control explains cannot be told from chance."""


def is_fitted(setup: Setup, power: Power | None) -> bool:
    """Whether this serves: Gaussian tokens that are their own queries, mean or covariance (`power` None)."""
    gaussian = setup.law.quadratic and setup.self_attention and setup.limit.affine() is not None
    return gaussian and (power is None or power.order == 1)


class FittedGaussian:
    """What all replicates share: the law, the head, and E‖h‖² for the mean (`order` 1) or covariance (2)."""

    def __init__(self, setup: Setup, order: int) -> None:
        affine = setup.limit.affine()
        if affine is None:
            raise TypeError(f"The limit over {setup.law!r} is not affine.")
        head = setup.head
        self.order, self.dim = order, setup.law.dim
        self.mean, self.cov = setup.law.mean.double(), setup.law.covariance.double()
        self.V, self.A, self.B = head.V.double(), head.A.double(), affine[0].double()
        self.Q = self.B @ self.cov @ self.A.T
        zero = head.factors.right.new_zeros(head.query_dim)
        self.score_bias = head.score_vector(zero).double()
        self.value_bias = head.read(zero.new_zeros(self.V.shape[-1])).double()

    def image(self, moment: Tensor) -> Tensor:
        """The linear map that takes δ or δδᵀ to h, before centring."""
        if self.order == 1:
            return (self.V + self.B) @ moment
        cross = self.V @ moment @ self.Q.T
        return cross + cross.T + self.B @ moment @ self.B.T

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
        return float(second - self.image(S).square().sum())


class TokenMoments:
    """N(m̂, Σ̂) of growing sets of tokens, each token looked at once."""

    def __init__(self, fitted: FittedGaussian) -> None:
        self.fitted, self.count = fitted, 0
        self.first, self.second = torch.zeros_like(fitted.mean), torch.zeros_like(fitted.cov)

    def take(self, tokens: Float[Tensor, "n d"]) -> None:
        """All tokens so far, of which the first ones are known."""
        away = tokens[self.count :] - self.fitted.mean.to(tokens)
        self.first = self.first + away.sum(0).double()
        self.second = self.second + (away.T @ away).double()
        self.count = len(tokens)

    def at(self, sample: Sample, truth: Reference) -> tuple[Sample, list[Tensor]]:
        """The sample with Γ̂ in place of Γ; and, over all n tokens, Γ̂'s mean minus the truth's and its second
        moment about the truth's mean minus the truth's."""
        f, shift = self.fitted, self.first / self.count
        cov = self.second / self.count - torch.outer(shift, shift)
        slope = f.V @ cov @ f.A
        constant = f.V @ (f.mean + shift + cov @ f.score_bias) + f.value_bias
        if sample.queries is None:
            raise TypeError("A fitted map needs the queries.")
        away = slope @ (f.mean + shift) + constant - truth.mean
        second = slope @ cov @ slope.T + torch.outer(away, away)
        limits = sample.queries.double() @ slope.T + constant
        if f.order == 1:
            return sample._replace(limits=limits), [away + truth.mean - truth.value]
        return sample._replace(limits=limits), [away, second.flatten() - truth.value]

    def control(self) -> Float[Tensor, ""]:
        """‖(1/n) Σ h(y_i)‖² − E‖h‖²/n."""
        f, n = self.fitted, self.count
        moment = self.first / n if f.order == 1 else self.second / n - f.cov
        return f.image(moment).square().sum() - f.expected / n


def controlled(
    squares: Float[Tensor, "replicates n"], controls: Float[Tensor, "replicates n"]
) -> Float[Tensor, "replicates n"]:
    """squares − β·controls, which has the same expectation; β of a replicate is the regression coefficient over the
    others, and so independent of it."""
    s, c = squares - squares.mean(0), controls - controls.mean(0)
    # Leaving one row out of centred sums takes off its own product times R/(R − 1).
    share = len(squares) / (len(squares) - 1)
    cross = (s * c).sum(0) - share * s * c
    spread = c.square().sum(0) - share * c.square()
    return squares - cross / spread * controls
