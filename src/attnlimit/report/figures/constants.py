"""Constants of the published bounds against the radius R of the tokens' support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlimit.drawing import Figure
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, axes


@dataclass(frozen=True)
class Constant:
    """What stands before the power of n, at one radius R: measured at n, and proved."""

    R: float
    n: int
    C: float
    C_error: float
    bound: float


@dataclass(frozen=True)
class UniformConstant(Constant):
    edge: float
    """As n → ∞, at ‖x‖ = R."""
    exponent: float
    exponent_low: float
    exponent_high: float


@dataclass(frozen=True)
class MomentConstant(Constant):
    statistic: str


def uniform_constant_figure(rows: Sequence[UniformConstant], confidence: float) -> Figure:
    """√n times the largest error, measured, as n → ∞ at the edge, and proved."""
    figure, ax = axes()
    R, C, error, bound = _arrays(rows)
    edge = [row.edge for row in rows]
    label = f"measured at n = {rows[0].n:,}, 95 % intervals"
    ax.errorbar(R**2, C, yerr=1.96 * error, fmt="o", color=BLUE, markersize=5, capsize=3, label=label)
    ax.plot(R**2, edge, "-", color=ORANGE, label="central limit theorem at ‖x‖ = R, exact")
    ax.plot(R**2, bound, "--", color=GREEN, label=f"proved, with probability {confidence:g}")
    ax.set(yscale="log", xlabel="R² (radius of tokens and queries, squared)")
    ax.set_ylabel("C(R) = √n · largest error over ‖x‖ ≤ R")
    ax.set_title("A straight line is exponential growth in R²", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=9)
    return figure


def _arrays(rows: Sequence[Constant]) -> tuple[np.ndarray, ...]:
    return tuple(np.array([[row.R, row.C, row.C_error, row.bound] for row in rows]).T)


def moment_constant_figure(rows: Sequence[MomentConstant], rate: float) -> Figure:
    """n^{1/(2(1+H²))} times the error of the outputs' mean and covariance; `rate` is that of the uniform constant."""
    figure, ax = axes()
    for k, statistic in enumerate(dict.fromkeys(row.statistic for row in rows)):
        R, C, error, bound = _arrays([row for row in rows if row.statistic == statistic])
        label, colour = f"{statistic}, measured, 95 % intervals", (BLUE, ORANGE)[k]
        ax.errorbar(R, C, yerr=1.96 * error, fmt="os"[k], color=colour, markersize=5, capsize=3, label=label)
        if k == 0:
            ax.plot(R, bound, "--", color=GREEN, label="proved for the map, averaged over queries")
            fine = np.linspace(R.min(), R.max(), 200)
            curve = C[0] * np.exp(rate * (fine**2 - R[0] ** 2))
            ax.plot(fine, curve, ":", color=BLACK, label="the uniform constant's growth")
            ax.set_ylim(min(row.C for row in rows) / 3, 30 * bound.max())
    ax.set(xscale="log", yscale="log", xlabel="R (radius of the tokens)")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("{x:g}")
    ax.set_ylabel("C'(R) = largest $n^{1/(2(1+H^2))}$ · rms error")
    ax.set_title("A straight line is a power of R", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=9)
    return figure
