"""Linear attention, the comparison: the same matrices, no softmax."""

from __future__ import annotations

from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.attention.maps import AttentionMap
from attnlimit.measures.base import Measure


class LinearHead(Head):
    """x ↦ ∫ V y (kᵀq) dμ(y): equals the softmax limit for centred Gaussian tokens [boursier2026softmax]."""

    def __call__(self, measure: Measure) -> LinearMap:
        self.check_fits(measure)
        return LinearMap(self, measure)


class LinearMap(AttentionMap):
    """y(x) = M L q + m (b_kᵀq), with M = ∫ v yᵀ dμ and m = ∫ v dμ; affine in x."""

    def _mean(self, x: Tensor) -> Tensor:
        mean = self.head.score_vector(x) @ self.measure.second_moment().T
        bias = self.head.factors.key_bias
        if bias is None:
            return mean
        q = self.head.query(x)
        shift = (q * self._per_head(bias[..., None, :], q[..., None, :])[..., 0, :]).sum(-1, keepdim=True)
        return mean + shift * self.measure.mean

    def _cov(self, x: Tensor) -> Tensor:
        M = self.measure.second_moment()
        return M.expand(*self.head.heads, *x.shape[:-1], *M.shape)

    def jacobian(self, x: Tensor) -> Tensor:  # type: ignore[override]
        J, bias = super().jacobian(x), self.head.factors.key_bias
        if bias is None:
            return J
        value = self.head.read_linear(self.measure.mean.expand(*J.shape[:-2], -1))
        slope = bias[..., None, :] @ self.head.factors.right
        return J + value[..., :, None] * self._per_head(slope, J)

    def affine(self) -> tuple[Tensor, Tensor] | None:
        if self.head.heads:
            return None
        zero = self.head.factors.right.new_zeros(self.head.query_dim)
        return self.jacobian(zero), self(zero)
