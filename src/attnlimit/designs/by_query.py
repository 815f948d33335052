"""Kept and drawn keys that follow each query.

A query with weights p_j and output Γ whose rest has R keys makes, with n of them drawn, an error of about

    spread² (1/n − 1/R),   spread = R · (standard deviation over the rest of p_j ‖v_j − Γ‖).

With a price for keys, every query does best with the kept set and the n that make

    (α·spread)² (1/n − 1/R) + n + |kept|

least, so n = α·spread: one number α, the keys drawn per unit of spread, says what all queries of a head do.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

TOPS = (0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""How many keys of largest score a query may keep."""
FEWEST = 4
"""Keys that are drawn at least, so that the rest is never left out."""


def choose(
    per_spread: float | Tensor,
    spread: Float[Tensor, "*q sets"],
    rest: Float[Tensor, "*q sets"],
    kept: Float[Tensor, "*q sets"],
) -> tuple[Int[Tensor, "*q 1"], Float[Tensor, "*q 1"]]:
    """Which of the kept sets each query takes, and how many keys it draws beside it. `per_spread` broadcasts."""
    wanted = per_spread * spread
    n = wanted.round().clamp_min(FEWEST).minimum(rest)
    error = wanted.square() * (1 / n.clamp_min(1) - 1 / rest.clamp_min(1))
    best = (error + n + kept).argmin(-1, keepdim=True)
    return best, n.gather(-1, best)


def spread(number: Tensor, total: Tensor, square: Tensor) -> Tensor:
    """R · standard deviation, from the number, the sum and the sum of squares."""
    return (number * square - total.square()).clamp_min(0).sqrt()


def rest_spread(parts: Float[Tensor, "... keys"], rest: Bool[Tensor, "... keys"]) -> tuple[Tensor, Tensor]:
    """R, and the spread of what each key has a part in, over the rest: (…, 1) each; both arguments broadcast."""
    part = parts * rest
    number = rest.sum(-1, keepdim=True).to(part)
    return number, spread(number, part.sum(-1, keepdim=True), part.square().sum(-1, keepdim=True))


def contributions(
    weights: Float[Tensor, "*q keys"], values: Float[Tensor, "*b keys d"]
) -> Float[Tensor, "*q keys"]:
    """p_j ‖v_j − Γ‖ of each query, Γ = Σ p_j v_j (what a sink takes has no value)."""
    mean = weights @ values
    square = (mean @ values.mT).mul_(-2).add_(values.square().sum(-1)[..., None, :])
    return square.add_(mean.square().sum(-1, keepdim=True)).clamp_min_(0).sqrt_().mul_(weights)
