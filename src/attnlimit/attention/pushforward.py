"""The law of attention's output when the query is random."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.maps import LimitMap, Map
from attnlimit.errors import InputError, NotKnown
from attnlimit.measures import Empirical, Gaussian, Measure, Sphere
from attnlimit.measures.sphere import Radial
from attnlimit.numerics.bessel import sphere_cgf
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
    if isinstance(source, Empirical):
        return Empirical(map(source.tokens), weights=source.weights)
    law = Pushforward(map, source)
    if isinstance(source, Gaussian) and map.affine() is not None:
        return Gaussian(law.mean, (law.covariance + law.covariance.T) / 2)
    return law


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
        self._needs_sphere("mean")
        return self.map(self.source.mean)  # the map is odd about b_v

    @property
    def covariance(self) -> Tensor:
        affine = self.map.affine()
        if affine is not None:
            return affine[0] @ self.source.covariance @ affine[0].T
        limit, queries = self._needs_sphere("covariance")
        return sphere_covariance(self.map, limit, queries)

    def _needs_sphere(self, what: str) -> tuple[Radial, Sphere]:
        limit, bias = self.map.measure, self.map.head.factors.query_bias
        if (
            isinstance(self.map, LimitMap)
            and isinstance(limit, Radial)
            and isinstance(self.source, Sphere)
            and bias is None
        ):
            return limit, self.source
        raise NotKnown(
            f"The {what} of the output law is not known in closed form for {self.map!r} and queries {self.source!r}: "
            f"use .sample(n, generator=…).{what}."
        )


def sphere_covariance(map: Map, limit: Radial, queries: Sphere) -> Tensor:
    """Cov Γ(X) for X uniform on a sphere of radius ρ and Γ the limit of a sphere or ball of radius R.

    With A = U diag(σ) Wᵀ it is V U diag(λ) Uᵀ Vᵀ,
    λ_i = R²σ_i² E[A_k(Rρ√q)² T_i/q], q = Σ σ_k²T_k, T ~ Dirichlet(½, …, ½), by deterministic quadrature.
    """
    A = map.head.A
    U, sigma, _ = torch.linalg.svd(A, full_matrices=False)
    weights = torch.nn.functional.pad(sigma.square(), (0, queries.dim - len(sigma)))
    scale = limit.radius * queries.radius

    def squared_ratio(q: Tensor) -> Tensor:
        return sphere_cgf(scale * q.clamp_min(0).sqrt(), limit.order).ratio_over_r.square()

    try:
        _, with_share = dirichlet_expectation(squared_ratio, weights.double())
    except ValueError as problem:
        raise NotKnown(
            f"The covariance of the output law of {map!r} is beyond the quadrature: scores reach "
            f"{scale * float(sigma[0]):.3g}, and the singular values of A are far apart. "
            "Use .sample(n, generator=…).covariance."
        ) from problem
    lam = (limit.radius * scale) ** 2 * sigma.square() * with_share[: len(sigma)].to(sigma)
    half = map.head.read_linear((U * lam.sqrt()).T.contiguous())
    return half.T @ half
