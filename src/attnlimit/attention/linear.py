"""Linear attention, the comparison: the same matrices, no softmax."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.attention.maps import AttentionMap
from attnlimit.inputs import Array
from attnlimit.measures.base import Measure


class LinearHead(Head):
    """x ↦ ∫ v (kᵀq) dμ: equals the softmax limit for centred Gaussian tokens [boursier2026softmax]."""

    def __call__(self, measure: Measure) -> LinearMap:
        self.check_fits(measure)
        return LinearMap(self, measure)


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
        if self.head.heads:
            return None
        zero = self.head.factors.right.new_zeros(self.head.query_dim)
        return self.jacobian(zero), self(zero)

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
