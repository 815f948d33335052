"""Tail bounds for means of independent random vectors in a Hilbert space: no dimension enters.

All arguments broadcast against the numbers of tokens n.
"""

from __future__ import annotations

import math

from torch import Tensor


def hoeffding(largest: Tensor, n: Tensor, delta: float) -> Tensor:
    """‖mean ξ‖ ≤ c √(2 log(2/δ)/n) with probability ≥ 1 − δ, for E ξ = 0, ‖ξ‖ ≤ c [pinelis1994, Theorem 3.5]."""
    return largest * (2 * math.log(2 / delta) / n).sqrt()


def bernstein(variance: Tensor, largest: Tensor, n: Tensor, delta: float) -> Tensor:
    """‖mean ξ‖ ≤ β + √(β² + 2vℓ/n), β = cℓ/(3n), ℓ = log(2/δ), with probability ≥ 1 − δ, for E ξ = 0, E‖ξ‖² = v.

    The root in t of P(‖mean ξ‖ ≥ t) ≤ 2 exp(−nt²/(2(v + ct/3))), which Bennett's form [pinelis1994, Theorem 3.4]
    implies.
    """
    log_term = math.log(2 / delta)
    beta = largest * log_term / (3 * n)
    return beta + (beta.square() + 2 * variance * log_term / n).sqrt()


def mean_shortfall(second_moment: Tensor, n: Tensor, delta: float) -> Tensor:
    """E w − mean w ≤ √(2 E[w²] log(1/δ)/n) with probability ≥ 1 − δ, for w ≥ 0, however large w may be.

    From e^{−λw} ≤ 1 − λw + λ²w²/2 (w, λ ≥ 0) and Chernoff with λ = t/E[w²].
    """
    return (2 * second_moment * math.log(1 / delta) / n).sqrt()
