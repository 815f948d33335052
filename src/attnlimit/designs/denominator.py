"""As many drawn keys as make the softmax denominator right: the rule that vAttention (Desai et al., 2025) describes.

With D the sum of e^{s_j} over all keys that a query sees, and σ the standard deviation of e^{s_j} over the R keys of its rest, n of
them drawn without repeats and weighing R/n each give D up to a standard error R σ (1/n − 1/R)^½. By the central limit theorem

    n = n₀ / (1 + n₀/R),   n₀ = (z R σ / (ε D))²,   z the normal quantile of 1 − δ/2,

makes the relative error of D at most ε with probability 1 − δ. What the values are plays no part. σ and D are exact here, where vAttention estimates them.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlimit.designs.by_query import FEWEST, rest_spread
from attnlimit.errors import InputError


@dataclass(frozen=True)
class Denominator:
    """Relative error ε of the denominator, kept with probability 1 − δ."""

    error: float
    chance: float = 0.05
    """δ"""

    def __post_init__(self) -> None:
        if not (0 < self.error < float("inf") and 0 < self.chance < 1):
            raise InputError(
                f"error must be above 0 and chance between 0 and 1, got {self.error!r} and {self.chance!r}."
            )

    def __call__(
        self, weights: Float[Tensor, "*q keys"], rest: Bool[Tensor, "*q keys"]
    ) -> Int[Tensor, "*q 1"]:
        """Keys that each query draws of its rest, from its softmax weights e^{s_j}/D."""
        return self.drawn(*rest_spread(weights, rest)).long()

    def drawn(self, number: Float[Tensor, "*q"], width: Float[Tensor, "*q"]) -> Float[Tensor, "*q"]:
        """The same from R and R σ / D."""
        z = -NormalDist().inv_cdf(self.chance / 2)
        plain = (z / self.error * width.double()).square()
        return (plain / (1 + plain / number.clamp_min(1))).ceil().clamp_min(FEWEST).minimum(number.double())
