"""Maps from queries to outputs: a head applied to a measure, with its derivatives."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_float
from attnlimit.measures import Empirical, Measure
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
        """The law of the output for a query of law `source`."""
        from attnlimit.attention.pushforward import pushforward

        return pushforward(self, source)


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
        if not self.measure.quadratic or self.head.heads:
            return None
        zero = self.head.factors.right.new_zeros(self.head.query_dim)
        return self.jacobian(zero), self(zero)

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
