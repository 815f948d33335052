"""Local exponents of exact error curves, along n and against the horizon, with those of n → ∞."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.rates import exponents, local_slopes
from attnlimit.report.figures.style import BLUE, GREEN, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = {"rms": (BLUE, "o", "rms"), "mean_rms": (ORANGE, "s", "mean rms")}


def sharp_rates_figure(points: Sequence[Mapping[str, Any]]) -> Figure:
    """`points` have horizon, n, rms and mean_rms."""
    figure, (left, right) = panels(2)
    _along_n(left, points)
    _against_horizon(right, points)
    return figure


def _along_n(ax: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    """The exponent at n of the rms curve; dashes are its limit."""
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.0, 0.9, len(points)))
    for point, shade in zip(points, shades, strict=True):
        n = np.array(point["n"], dtype=float)
        ax.plot(n, local_slopes(point["n"], point["rms"]), color=shade, label=f"H = {point['horizon']:g}")
        ax.hlines(exponents(point["horizon"]).rms, n[-1], 20 * n[-1], color=shade, linestyle="--")
    ax.set(
        xscale="log", ylim=(0, 0.55), xlabel="tokens n", ylabel="local exponent of the rms error at n, exact"
    )
    ax.set_title("At finite n; dashes: n → ∞", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _against_horizon(ax: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    H = np.array([point["horizon"] for point in points])
    fine = np.linspace(0.02, 1.08 * H.max(), 200)
    known = [exponents(float(h)) for h in fine]
    for name, (colour, marker, words) in CURVES.items():
        ax.plot(fine, [getattr(one, name) for one in known], color=colour, label=f"{words}, n → ∞ (ours)")
        local = [float(local_slopes(point["n"], point[name])[-1]) for point in points]
        last = f"$10^{{{np.log10(points[0]['n'][-1]):.0f}}}$"
        ax.plot(H, local, marker, color=colour, label=f"{words}, exact at {last}")
    ax.plot(
        fine,
        [float(one.paper) for one in known],
        ":",
        color=GREEN,
        label=r"published, $1/(2(1+H^2))$",
        linewidth=2,
    )
    ax.set(xlabel="horizon H", ylabel="exponent of n", ylim=(0, 0.55))
    ax.set_title("Against the horizon", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=8)
