"""The law of attention's output when the query is random."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.maps import LimitMap, Map
from attnlimit.errors import InputError, NotKnown
from attnlimit.measures import Empirical, Measure
from attnlimit.numerics.dirichlet import dirichlet_expectation


def pushforward(map: Map, source: Measure) -> Measure:
    """Γ#source: Empirical for tokens, Gaussian for a Gaussian through an affine map, else a law to sample
    whose mean and covariance are exact where known."""
    if map.head.heads:
        raise InputError(f"pushforward takes one head at a time, got {map.head!r}.")
    if source.dim != map.head.query_dim:
        raise InputError(
            f"The head reads {map.head.query_dim}-dimensional queries, {source!r} has dimension {source.dim}."
        )
    map.head.check_kind(source)
    if source.population is not None:
        return Empirical(map(source.population.tokens), weights=source.population.weights)
    affine = map.affine()
    return (None if affine is None else source.image(*affine)) or Pushforward(map, source)


class Pushforward(Measure):
    """The law of Γ(X), X ~ source: it can be sampled; mean and covariance are exact for affine maps and for
    queries on a sphere through the limit of a sphere or ball."""

    def __init__(self, map: Map, source: Measure) -> None:
        super().__init__(map.out_dim, dtype=source.dtype, device=source.device)
        self.map = map
        self.source = source
        self.domain = "an unknown set"

    def _cgf(self, a: Tensor) -> Tensor:
        raise NotKnown(
            "The CGF of an output law has no closed form; sample it and use the Empirical measure."
        )

    def _draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        return self.map(self.source.sample(n, generator=generator).tokens)

    @property
    def mean(self) -> Tensor:
        affine = self.map.affine()
        if affine is not None:
            return affine[0] @ self.source.mean + affine[1]
        self._radial("mean")
        return self.map(self.source.mean)  # the map is odd about b_v

    @property
    def covariance(self) -> Tensor:
        affine = self.map.affine()
        if affine is not None:
            return affine[0] @ self.source.covariance @ affine[0].T
        return sphere_covariance(self.map, *self._radial("covariance"))

    def _radial(self, what: str) -> tuple[Callable[[Tensor], Tensor], float]:
        """g with ∇Λ(a) = g(‖a‖) a, and the radius of the queries' sphere."""
        gain, shell = self.map.measure.gain, self.source.shell
        unbiased = self.map.head.factors.query_bias is None
        if isinstance(self.map, LimitMap) and gain is not None and shell is not None and unbiased:
            return gain, shell
        raise NotKnown(
            f"The {what} of the output law is not known in closed form for {self.map!r} and queries {self.source!r}: "
            f"use .sample(n, generator=…).{what}."
        )


def sphere_covariance(map: Map, gain: Callable[[Tensor], Tensor], radius: float) -> Tensor:
    """Cov Γ(X) for X uniform on a sphere of radius ρ and Γ(x) = V g(‖Ax‖) Ax.

    With A = U diag(σ) Wᵀ it is V U diag(λ) Uᵀ Vᵀ,
    λ_i = ρ²σ_i² E[g(ρ√q)² T_i], q = Σ σ_k²T_k, T ~ Dirichlet(½, …, ½), by deterministic quadrature.
    """
    head = map.head
    U, sigma, _ = torch.linalg.svd(head.A, full_matrices=False)
    weights = torch.nn.functional.pad(sigma.square(), (0, head.query_dim - len(sigma)))

    def squared_gain(q: Tensor) -> Tensor:
        return gain(radius * q.clamp_min(0).sqrt()).square()

    try:
        _, with_share = dirichlet_expectation(squared_gain, weights.double())
    except ValueError as problem:
        raise NotKnown(
            f"The covariance of the output law of {map!r} is beyond the quadrature: scores reach "
            f"{map.measure.radius * radius * float(sigma[0]):.3g}, and the singular values of A are far apart. "
            "Use .sample(n, generator=…).covariance."
        ) from problem
    lam = (radius * sigma).square() * with_share[: len(sigma)].to(sigma)
    half = head.read_linear((U * lam.sqrt()).T.contiguous())
    return half.T @ half
