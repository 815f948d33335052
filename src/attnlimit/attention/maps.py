"""Maps from queries to outputs: a head applied to a measure, with its derivatives, and the law of its output when the query is random."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError, NotKnown
from attnlimit.inputs import Array, as_float
from attnlimit.measures import Empirical, Measure
from attnlimit.numerics.dirichlet import dirichlet_expectation
from attnlimit.numerics.softmax import attend, tilted_covariance

if TYPE_CHECKING:
    from attnlimit.attention.head import Head


class Map:
    """x ↦ V y(x) + b_v for some mean y(x) of the tokens."""

    def __init__(self, head: Head, measure: Measure) -> None:
        self.head = head
        self.measure = measure

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.head!r}, {self.measure!r})"

    def __call__(self, x: Array) -> Float[Tensor, "*all dv"]:
        """Outputs, shape (*heads, *batch, d_out), for queries of shape (*batch, d_query)."""
        return self.head.read(self._mean(self.head.checked(x)))

    @abstractmethod
    def _mean(self, x: Tensor) -> Tensor:
        """y(x), shape (*heads, *batch, d)."""

    @property
    def out_dim(self) -> int:
        """d_out: V's rows, or the values' dimension where V is the identity."""
        V = self.head.factors.V
        return self.measure.value_dim if V is None else V.shape[-2]

    def affine(self) -> tuple[Tensor, Tensor] | None:
        """(W, b) when the map is x ↦ W x + b, else None."""
        return None

    def pushforward(self, source: Measure) -> Measure:
        """The law of the output for a query of law `source`: Empirical for tokens, Gaussian for a Gaussian through an affine map, else
        a law to sample whose mean and covariance are exact where known."""
        if self.head.heads:
            raise InputError(f"pushforward takes one head at a time, got {self.head!r}.")
        if source.dim != self.head.query_dim:
            raise InputError(
                f"The head reads {self.head.query_dim}-dimensional queries, {source!r} has dimension {source.dim}."
            )
        self.head.check_kind(source)
        if source.population is not None:
            return Empirical(self(source.population.tokens), weights=source.population.weights)
        affine = self.affine()
        return (None if affine is None else source.image(*affine)) or Pushforward(self, source)


class HardmaxMap(Map):
    """x ↦ V y*(x), y* the key of largest score yᵀAx over the support (ties averaged).

    For tokens it always exists; for a law only where the support is bounded in the direction Ax.
    """

    def _mean(self, x: Tensor) -> Tensor:
        return self.measure.top(self.head.score_vector(x))


class AttentionMap(Map):
    """A map that is differentiable in x, A and V, through y(x) and C(x) = V Cov_a(value, key):

    ∂Γ/∂x = C A,   ∂Γ/∂A[E] = C E x,   ∂Γ/∂V[E] = E y.
    """

    def cross_cov(self, x: Array) -> Float[Tensor, "*all dv dk"]:
        """C(x) = V Cov_a(value, key), shape (*heads, *batch, d_out, d_key)."""
        cov = self._cov(self.head.checked(x))
        return self.head.read_linear(cov.mT.contiguous()).mT

    def _cov(self, x: Tensor) -> Tensor:
        """Cov_a(value, key), shape (*heads, *batch, d, d_key)."""
        raise NotImplementedError

    def jacobian(self, x: Array) -> Float[Tensor, "*all dv dq"]:
        """∂Γ/∂x, shape (*heads, *batch, d_out, d_query)."""
        C, left = self.cross_cov(x), self.head.factors.left
        if left is not None:
            C = C @ self._per_head(left, C)
        return C @ self._per_head(self.head.factors.right, C)

    def derivative_A(self, x: Array, E: Array) -> Float[Tensor, "*all dv"]:
        """∂Γ/∂A in the direction E (*heads, d_key, d_query)."""
        E = self._direction(E, "A", self.head.key_dim, self.head.query_dim)
        x = self.head.checked(x)
        C = self.cross_cov(x)
        return (C @ (self._per_head(E, C) @ x[..., None]))[..., 0]

    def derivative_V(self, x: Array, E: Array) -> Float[Tensor, "*all dv"]:
        """∂Γ/∂V in the direction E (*heads, d_out, d)."""
        y = self._mean(self.head.checked(x))
        E = self._direction(E, "V", self.out_dim, y.shape[-1])
        return (self._per_head(E, y[..., None]) @ y[..., None])[..., 0]

    def _at_zero(self) -> tuple[Tensor, Tensor] | None:
        """Slope and value there, of one head."""
        zero = self.head.factors.right.new_zeros(self.head.query_dim)
        return None if self.head.heads else (self.jacobian(zero), self(zero))

    def _direction(self, E: Array, of: str, *shape: int) -> Tensor:
        like, wanted = self.head.factors.right, (*self.head.heads, *shape)
        E = as_float(E, "E", dtype=like.dtype, device=like.device)
        if E.shape != wanted:
            raise InputError(f"The direction E must have {of}'s shape {wanted}, got {tuple(E.shape)}.")
        return E

    def _per_head(self, matrix: Tensor, like: Tensor) -> Tensor:
        """A per-head matrix, shaped to multiply something of shape (*heads, *batch, ·, ·)."""
        heads = self.head.heads
        return matrix.reshape(*heads, *[1] * (like.ndim - 2 - len(heads)), *matrix.shape[-2:])


class LimitMap(AttentionMap):
    """Infinitely many tokens: Γ(x) = V ∇Λ(Ax), ∂Γ/∂x = V ∇²Λ(Ax) A."""

    def _mean(self, x: Tensor) -> Tensor:
        return self.measure.tilted_mean(self.head.score_vector(x))

    def _cov(self, x: Tensor) -> Tensor:
        return self.measure.tilted_cov(self.head.score_vector(x))

    def affine(self) -> tuple[Tensor, Tensor] | None:
        return self._at_zero() if self.measure.quadratic else None

    def standard_error(self, x: Array) -> Float[Tensor, "*all dv"]:
        """Standard error of the output, zero for closed-form limits (quasi-Monte Carlo laws have one)."""
        output = self(x)  # refuses where the limit is not resolved
        replicas = self.measure.replicas
        if not replicas:
            return torch.zeros_like(output)
        outputs = torch.stack([self.head(replica)(x) for replica in replicas])
        return outputs.std(0) / len(outputs) ** 0.5


class TokenMap(AttentionMap):
    """n tokens: ordinary softmax attention, keys and values projected once."""

    measure: Empirical

    @cached_property
    def _keys(self) -> Tensor:
        return self.head.keys(self.measure.tokens)

    @cached_property
    def _values(self) -> Tensor:
        values = self.measure.values.expand(*self.head.heads, *self.measure.values.shape)
        return self.head.read_linear(values) if self.head.reads_first else values

    def _attend(self, x: Tensor, values: Tensor) -> Tensor:
        q = self.head.query(x)
        flat = q.reshape(*self.head.heads, -1, q.shape[-1])
        mean = attend(flat, self._keys, values, self.measure.log_weights).mean
        return mean.reshape(*q.shape[:-1], values.shape[-1])

    def __call__(self, x: Array) -> Float[Tensor, "*all dv"]:
        x = self.head.checked(x)
        mean = self._attend(x, self._values)
        return self.head.shifted(mean) if self.head.reads_first else self.head.read(mean)

    def _mean(self, x: Tensor) -> Tensor:
        return self._attend(x, self.measure.values.expand(*self.head.heads, *self.measure.values.shape))

    def _covariance(self, x: Tensor, values: Tensor, others: Tensor) -> Tensor:
        q = self.head.query(x)
        flat = q.reshape(*self.head.heads, -1, q.shape[-1])
        cov = tilted_covariance(flat, self._keys, values, others, self.measure.log_weights)
        return cov.reshape(*q.shape[:-1], *cov.shape[-2:])

    def _cov(self, x: Tensor) -> Tensor:
        return self._covariance(x, self.measure.values, self.measure.tokens)

    def jacobian(self, x: Array) -> Float[Tensor, "*all dv dq"]:
        """∂Γ/∂x, through the projected keys."""
        C = self._covariance(self.head.checked(x), self._values, self._keys)
        if not self.head.reads_first:
            C = self.head.read_linear(C.mT.contiguous()).mT
        return C @ self._per_head(self.head.factors.right, C)


class LinearMap(AttentionMap):
    """S a + v̄ (b_kᵀq) with S = ∫ v yᵀ dμ and v̄ = ∫ v dμ, v = V y + b_v; affine in x.

    ∂/∂x = S A + v̄ b_kᵀR. The weights kᵀq do not sum to one, so b_v counts as much as they do.
    """

    def __call__(self, x: Array) -> Float[Tensor, "*all dv"]:
        x = self.head.checked(x)
        out = self._times(self._value_key_moment(), self.head.score_vector(x))
        B = self._value_bias_moment()
        return out if B is None else out + self._times(B, self.head.query(x))

    def _mean(self, x: Tensor) -> Tensor:
        y = self.head.score_vector(x) @ self.measure.second_moment().T
        bias = self.head.factors.key_bias
        if bias is None:
            return y
        return y + self._times(self.measure.mean[:, None] * bias[..., None, :], self.head.query(x))

    def cross_cov(self, x: Array) -> Float[Tensor, "*all dv dk"]:
        """S, at every x."""
        S = self._value_key_moment()
        batch = self.head.checked(x).shape[:-1]
        return S.reshape(*self.head.heads, *[1] * len(batch), *S.shape[-2:]).expand(
            *self.head.heads, *batch, -1, -1
        )

    def jacobian(self, x: Array) -> Float[Tensor, "*all dv dq"]:
        J, B = super().jacobian(x), self._value_bias_moment()
        return J if B is None else J + self._per_head(B @ self.head.factors.right, J)

    def affine(self) -> tuple[Tensor, Tensor] | None:
        return self._at_zero()

    def _value_key_moment(self) -> Float[Tensor, "*heads dv dk"]:
        """S = V ∫ y yᵀ dμ + b_v ∫ yᵀ dμ."""
        f, M = self.head.factors, self.measure.second_moment()
        S = M.expand(*self.head.heads, *M.shape) if f.V is None else f.V @ M
        return S if f.value_bias is None else S + f.value_bias[..., None] * self.measure.key_mean

    def _value_bias_moment(self) -> Float[Tensor, "*heads dv r"] | None:
        """v̄ b_kᵀ."""
        f, mean = self.head.factors, self.measure.mean
        if f.key_bias is None:
            return None
        value = mean if f.V is None else f.V @ mean
        value = value if f.value_bias is None else value + f.value_bias
        return value[..., None] * f.key_bias[..., None, :]

    def _times(self, matrix: Float[Tensor, "*heads i j"], vectors: Tensor) -> Tensor:
        return (self._per_head(matrix, vectors[..., None]) @ vectors[..., None])[..., 0]


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
