"""The law of a weighted sum of chi-squares, with relative accuracy in both tails."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

NODES = 80
"""Contour points above the real axis; the lower half is the mirror image."""


class WeightedChi2(NamedTuple):
    """At each q: the log density of Σ_i b_i g_i², and E[Σ_i c_i g_i² | Σ_i b_i g_i² = q]."""

    log_pdf: Float[Tensor, " k"]
    conditional: Float[Tensor, " k"]


def weighted_chi2(
    q: Float[Tensor, " k"], weights: Float[Tensor, " r"], other: Float[Tensor, " r"] | None = None
) -> WeightedChi2:
    """Σ_i b_i g_i² for independent standard normal g_i and b_i > 0 has density

        (1/2πi) ∫ e^{sq} Π (1 + 2 s b_i)^{−1/2} ds

    on any contour around the cut s ≤ −1/(2 max b). Ours is the parabola s = g(1 + iv)² − 1/(2 max b) through the real
    saddle point, where everything is relative to the saddle's height, so the tails are as good as the bulk. A factor
    (1 + 2 s b_i)^{−1} in the integral is the expectation with g_i² (c_i are the `other` weights, b_i by default).
    """
    q, b = q.double(), weights.double()
    c = b if other is None else other.double()
    gap = _saddle_gap(q, b)
    base = (1 - b / b.max()) + 2 * gap[:, None] * b  # 1 + 2 s* b_i, nothing cancels
    height = (gap - 0.5 / b.max()) * q - 0.5 * base.log().sum(-1)
    reach = (37.0 / (gap * q)).sqrt()  # e^{−g q v²} < 1e-16 beyond
    v = reach[:, None] * torch.linspace(0, 1, NODES + 1, dtype=torch.float64, device=q.device)
    move = gap[:, None] * torch.complex(-v.square(), 2 * v)  # s − s*
    log_integrand = move * q[:, None]
    shares = torch.zeros_like(log_integrand)
    for b_i, c_i, base_i in zip(b, c, base.unbind(-1), strict=True):
        ratio = 1 + 2 * b_i * move / base_i[:, None]
        log_integrand = log_integrand - 0.5 * ratio.log()
        shares = shares + c_i / (base_i[:, None] * ratio)
    integrand = log_integrand.exp() * torch.complex(torch.ones_like(v), v) * (2 / torch.pi) * gap[:, None]
    trapezoid = torch.full_like(v, 1.0)
    trapezoid[:, 0] = 0.5
    density = (trapezoid * integrand.real).sum(1) * reach / NODES
    joint = (trapezoid * (integrand * shares).real).sum(1) * reach / NODES
    return WeightedChi2(height + density.log(), joint / density)


def _saddle_gap(q: Tensor, b: Tensor) -> Tensor:
    """g = s* + 1/(2 max b) with q = Σ b_i/(1 + 2 s* b_i), by bisection in log g between ½/q and ½ r/q."""
    low, high = 0.5 / q, 0.5 * len(b) / q
    for _ in range(60):
        middle = (low * high).sqrt()
        above = (b / ((1 - b / b.max()) + 2 * middle[:, None] * b)).sum(-1) > q
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low * high).sqrt()
