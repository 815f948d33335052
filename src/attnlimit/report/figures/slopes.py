"""Error curves of output moments, and their fitted slopes against the horizon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.rates import exponents
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = {"mean": (BLUE, "o"), "covariance": (ORANGE, "s")}
MOST_CURVES = 6


def slopes_figure(points: Sequence[Mapping[str, Any]], *, bounded: bool = False) -> Figure:
    """`points` are those of convergence studies; `bounded` laws have slope ½ as n → ∞."""
    statistics = [name for name in SERIES if any(point["statistic"] == name for point in points)]
    figure, found = panels(len(statistics) + 1, width=3.6 * (len(statistics) + 1) + 1.2)
    by = {name: [point for point in points if point["statistic"] == name] for name in statistics}
    for ax, name in zip(found, statistics, strict=False):
        _curves(ax, by[name], name)
    _slopes(found[-1], by, bounded)
    return figure


def _curves(ax: Axes, points: Sequence[Mapping[str, Any]], name: str) -> None:
    from matplotlib import colormaps

    chosen = points[:: max(1, -(-len(points) // MOST_CURVES))]
    for point, shade in zip(chosen, colormaps["viridis"](np.linspace(0, 0.9, len(chosen))), strict=True):
        rms, error = (np.array(point[key], dtype=float) for key in ("rms", "rms_standard_error"))
        n = np.array(point["n"], dtype=float)
        label = f"H = {point['horizon']:.3g}"
        ax.errorbar(n, rms, yerr=1.96 * error, fmt="o", markersize=3, capsize=2, color=shade, label=label)
        fit = point["fit"]
        ax.plot(n, fit["scale"] * n ** -fit["exponent"], color=shade, linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel=f"rms error of the outputs' {name}")
    ax.set_title(f"{name}, with fitted powers", fontsize=10, loc="left")
    ax.xaxis.set_minor_formatter("")
    ax.set_ylim(bottom=ax.get_ylim()[0] / 3)  # room for the names
    ax.legend(frameon=False, fontsize=7.5, ncols=2, loc="lower left")


def _slopes(ax: Axes, by: Mapping[str, Sequence[Mapping[str, Any]]], bounded: bool) -> None:
    largest = 0.0
    for name, points in by.items():
        colour, marker = SERIES[name]
        H = [point["horizon"] for point in points]
        slope = np.array([point["fit"]["exponent"] for point in points])
        low, high = np.array([point["fit"]["interval"] for point in points]).T
        bars = [slope - low, high - slope]
        ax.errorbar(
            H, slope, yerr=bars, fmt=marker, color=colour, markersize=4, capsize=3, label=f"{name}, fitted"
        )
        largest = max(largest, *H)
    fine = np.linspace(0.0, 1.05 * largest, 200)
    known = [exponents(float(h)) for h in fine]
    ax.plot(
        fine,
        [float(one.paper) for one in known],
        ":",
        color=GREEN,
        linewidth=2,
        label="published, $1/(2(1+H^2))$",
    )
    if bounded:
        ax.axhline(0.5, linestyle="--", color=BLACK, linewidth=1, label="bounded tokens, n → ∞")
    else:
        words = "error of the map, n → ∞ (ours)"
        ax.plot(fine, [float(one.mean) for one in known], "--", color=BLACK, linewidth=1, label=words)
    ax.set(xlabel="horizon H", ylabel="exponent of n, 95 % intervals", ylim=(0, 0.62))
    ax.set_title("Against the horizon", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=7.5, loc="lower left")
