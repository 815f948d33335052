"""Local exponents of exact error curves, along n and against the horizon, with those of n → ∞."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnlimit.drawing import Axes, Figure
from attnlimit.rates import exponents
from attnlimit.report.figures.style import BLUE, ORANGE, exponent_lines, panels, shades
from attnlimit.studies.kinds.exact import ExactCurves

CURVES = {"rms": (BLUE, "o", "rms"), "mean_rms": (ORANGE, "s", "mean rms")}


def sharp_rates_figure(curves: Sequence[ExactCurves]) -> Figure:
    """Of heads on Gaussian tokens, at several horizons."""
    figure, (left, right) = panels(2)
    known = [(one.horizon, one) for one in curves if one.horizon is not None]
    _along_n(left, known)
    _against_horizon(right, known)
    return figure


def _along_n(ax: Axes, curves: Sequence[tuple[float, ExactCurves]]) -> None:
    """The exponent at n of the rms curve; dashes are its limit."""
    for (H, one), shade in zip(curves, shades(len(curves), 0.9), strict=True):
        n = np.array(one.rms.n, dtype=float)
        ax.plot(n, one.rms.local_slopes(), color=shade, label=f"H = {H:g}")
        ax.hlines(float(exponents(H).rms), n[-1], 20 * n[-1], color=shade, linestyle="--")
    ax.set(
        xscale="log", ylim=(0, 0.55), xlabel="tokens n", ylabel="local exponent of the rms error at n, exact"
    )
    ax.set_title("At finite n; dashes: n → ∞", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _against_horizon(ax: Axes, curves: Sequence[tuple[float, ExactCurves]]) -> None:
    H = np.array([one[0] for one in curves])
    fine = np.linspace(0.02, 1.08 * H.max(), 200)
    known = [exponents(float(h)) for h in fine]
    last = f"$10^{{{np.log10(curves[0][1].rms.n[-1]):.0f}}}$"
    for name, (colour, marker, words) in CURVES.items():
        ax.plot(fine, [getattr(one, name) for one in known], color=colour, label=f"{words}, n → ∞ (ours)")
        local = [float(getattr(one, name).local_slopes()[-1]) for _, one in curves]
        ax.plot(H, local, marker, color=colour, label=f"{words}, exact at {last}")
    exponent_lines(ax, fine, paper=r"published, $1/(2(1+H^2))$")
    ax.set(xlabel="horizon H", ylabel="exponent of n", ylim=(0, 0.55))
    ax.set_title("Against the horizon", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=8)
