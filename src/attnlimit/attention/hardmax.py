"""Hardmax: the zero-temperature map."""

from __future__ import annotations

from torch import Tensor

from attnlimit.attention.maps import Map


class HardmaxMap(Map):
    """x ↦ V y*(x), y* the key of largest score yᵀAx over the support (ties averaged).

    For tokens it always exists; for a law only where the support is bounded in the direction Ax.
    """

    def _mean(self, x: Tensor) -> Tensor:
        return self.measure.top(self.head.score_vector(x))
