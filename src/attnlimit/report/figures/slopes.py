"""Error curves of output moments, and their fitted slopes against the horizon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnlimit.drawing import Axes, Figure
from attnlimit.rates import ErrorCurve, PowerFit
from attnlimit.report.figures.study import StudyFigure, pictures
from attnlimit.report.figures.style import BLACK, BLUE, ORANGE, bars, exponent_lines, panels, shades
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.output_moments import Moments
from attnlimit.studies.setting import CurveResult

SERIES = {"mean": (BLUE, "o"), "covariance": (ORANGE, "s")}
MOST_CURVES = 6


@dataclass(frozen=True, eq=False)
class FittedCurve:
    """An error curve of a head with horizon H, and the power of n through it."""

    statistic: str
    horizon: float
    curve: ErrorCurve
    fit: PowerFit
    replicates: int | None


def fitted(found: Sequence[CurveResult]) -> list[FittedCurve]:
    """Those that have a fit and a horizon, by statistic and horizon."""
    kept = [
        FittedCurve(one.error_of, one.horizon, one.curve, fit, one.replicates)
        for one in found
        if (fit := one.fit) is not None and one.horizon is not None
    ]
    return sorted(kept, key=lambda one: (one.statistic, one.horizon))


@pictures.register(Moments)
def _moments(first: Moments, name: str, points: Sequence[Point[Moments]]) -> list[StudyFigure]:
    curves = fitted([curve for one in points for curve in one.result.curves])
    words = "Errors of the outputs' mean and covariance with 95 % intervals, and exponents fitted to them."
    return (
        [StudyFigure("slopes", "How fast the moments converge", words, slopes_figure(curves))]
        if curves
        else []
    )


def slopes_figure(curves: Sequence[FittedCurve], *, bounded: bool = False) -> Figure:
    """Curves of one or two statistics; `bounded` laws have slope ½ as n → ∞."""
    statistics = [name for name in SERIES if any(one.statistic == name for one in curves)]
    figure, found = panels(len(statistics) + 1, width=3.6 * (len(statistics) + 1) + 1.2)
    by = {name: [one for one in curves if one.statistic == name] for name in statistics}
    for ax, name in zip(found, statistics, strict=False):
        _curves(ax, by[name], name)
    _slopes(found[-1], by, bounded)
    return figure


def _curves(ax: Axes, curves: Sequence[FittedCurve], name: str) -> None:
    chosen = curves[:: max(1, -(-len(curves) // MOST_CURVES))]
    for one, shade in zip(chosen, shades(len(chosen), 0.9), strict=True):
        n, rms, noise = np.array(one.curve.n, dtype=float), one.curve.error, one.curve.standard_error
        half = None if noise is None else 1.96 * noise
        label = f"H = {one.horizon:.3g}"
        ax.errorbar(n, rms, yerr=half, fmt="o", markersize=3, capsize=2, color=shade, label=label)
        ax.plot(n, one.fit.predict(one.curve.n), color=shade, linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel=f"rms error of the outputs' {name}")
    ax.set_title(f"{name}, with fitted powers", fontsize=10, loc="left")
    ax.xaxis.set_minor_formatter("")
    ax.set_ylim(bottom=ax.get_ylim()[0] / 3)  # room for the names
    ax.legend(frameon=False, fontsize=7.5, ncols=2, loc="lower left")


def _slopes(ax: Axes, by: Mapping[str, Sequence[FittedCurve]], bounded: bool) -> None:
    largest = 0.0
    for name, curves in by.items():
        colour, marker = SERIES[name]
        H = [one.horizon for one in curves]
        slope = np.array([one.fit.exponent for one in curves])
        reach, label = bars(slope, [one.fit.interval for one in curves]), f"{name}, fitted"
        ax.errorbar(H, slope, yerr=reach, fmt=marker, color=colour, markersize=4, capsize=3, label=label)
        largest = max(largest, *H)
    ours = {} if bounded else {"mean": "error of the map, n → ∞ (ours)"}
    exponent_lines(ax, np.linspace(0.0, 1.05 * largest, 200), paper="published, $1/(2(1+H^2))$", **ours)
    if bounded:
        ax.axhline(0.5, linestyle="--", color=BLACK, linewidth=1, label="bounded tokens, n → ∞")
    ax.set(xlabel="horizon H", ylabel="exponent of n, 95 % intervals", ylim=(0, 0.62))
    ax.set_title("Against the horizon", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=7.5, loc="lower left")
