"""How errors fall: exponents along n and against the horizon, constants against the radius, gradients against prompt length, and the
way to hardmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnlimit.drawing import Axes, Figure
from attnlimit.rates import ErrorCurve, PowerFit, exponents, fit_log
from attnlimit.report.figures.study import StudyFigure, pictures
from attnlimit.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    axes,
    dots,
    exponent_lines,
    finish,
    fitted_dots,
    panels,
    shades,
)
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.concentration import Concentrated
from attnlimit.studies.kinds.exact import ExactCurves
from attnlimit.studies.kinds.hardmax import Distance
from attnlimit.studies.kinds.output_moments import Moments
from attnlimit.studies.setting import CurveResult

CURVES = {"rms": (BLUE, "o", "rms"), "mean_rms": (ORANGE, "s", "mean rms")}


def sharp_rates_figure(curves: Sequence[ExactCurves]) -> Figure:
    """Of heads on Gaussian tokens, at several horizons: the exponent at n of the rms curve, with dashes for its limit, and
    exponents at the largest n against the horizon."""
    figure, (left, right) = panels(2)
    known = [(one.horizon, one) for one in curves if one.horizon is not None]
    for (H, one), shade in zip(known, shades(len(known), 0.9), strict=True):
        n = np.array(one.rms.n, dtype=float)
        left.plot(n, one.rms.local_slopes(), color=shade, label=f"H = {H:g}")
        left.hlines(float(exponents(H).rms), n[-1], 20 * n[-1], color=shade, linestyle="--")
    below = {"ncols": 4, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
    y, title = "local exponent of the rms error at n, exact", "At finite n; dashes: n → ∞"
    finish(left, "tokens n", y, title, log="x", legend=below, ylim=(0, 0.55))
    horizons = np.array([H for H, _ in known])
    fine = np.linspace(0.02, 1.08 * horizons.max(), 200)
    sharp = [exponents(float(h)) for h in fine]
    last = f"$10^{{{np.log10(known[0][1].rms.n[-1]):.0f}}}$"
    for name, (colour, marker, words) in CURVES.items():
        right.plot(fine, [getattr(one, name) for one in sharp], color=colour, label=f"{words}, n → ∞ (ours)")
        local = [float(getattr(one, name).local_slopes()[-1]) for _, one in known]
        right.plot(horizons, local, marker, color=colour, label=f"{words}, exact at {last}")
    exponent_lines(right, fine, paper=r"published, $1/(2(1+H^2))$")
    finish(right, "horizon H", "exponent of n", "Against the horizon", ylim=(0, 0.55))
    return figure


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
    title = "How fast the moments converge"
    return [StudyFigure("slopes", title, words, slopes_figure(curves))] if curves else []


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
        dots(ax, n, rms, half, "o", shade, f"H = {one.horizon:.3g}", markersize=3, capsize=2)
        ax.plot(n, one.fit.predict(one.curve.n), color=shade, linewidth=1)
    y, title = f"rms error of the outputs' {name}", f"{name}, with fitted powers"
    finish(ax, "tokens n", y, title, log="xy", legend={"ncols": 2, "loc": "lower left"})
    ax.xaxis.set_minor_formatter("")
    ax.set_ylim(bottom=ax.get_ylim()[0] / 3)  # room for the names


def _slopes(ax: Axes, by: Mapping[str, Sequence[FittedCurve]], bounded: bool) -> None:
    largest = 0.0
    for name, curves in by.items():
        colour, marker = SERIES[name]
        H = [one.horizon for one in curves]
        fitted_dots(ax, [one.fit for one in curves], H, marker, colour, f"{name}, fitted")
        largest = max(largest, *H)
    ours = {} if bounded else {"mean": "error of the map, n → ∞ (ours)"}
    exponent_lines(ax, np.linspace(0.0, 1.05 * largest, 200), paper="published, $1/(2(1+H^2))$", **ours)
    if bounded:
        ax.axhline(0.5, linestyle="--", color=BLACK, linewidth=1, label="bounded tokens, n → ∞")
    y, where = "exponent of n, 95 % intervals", {"loc": "lower left"}
    finish(ax, "horizon H", y, "Against the horizon", legend=where, ylim=(0, 0.62))


@dataclass(frozen=True, eq=False)
class Beside:
    """The same error twice, at one horizon."""

    horizon: float
    exact: ErrorCurve
    sampled: ErrorCurve


def beside_figure(pairs: Sequence[Beside]) -> Figure:
    """Lines are exact, dots sampled."""
    figure, ax = axes()
    for one, shade in zip(pairs, shades(len(pairs), 0.9), strict=True):
        ax.plot(one.exact.n, one.exact.error, color=shade, label=f"H = {one.horizon:.3g}")
        reach = None if one.sampled.standard_error is None else 1.96 * one.sampled.standard_error
        dots(ax, one.sampled.n, one.sampled.error, reach, "o", shade, None)
    title = "Lines: exact; dots: sampled, 95 % intervals"
    finish(ax, "tokens n", "rms error of the mean output", title, log="xy")
    ax.xaxis.set_minor_formatter("")
    return figure


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
    dots(ax, R**2, C, 1.96 * error, "o", BLUE, label, markersize=5)
    ax.plot(R**2, edge, "-", color=ORANGE, label="central limit theorem at ‖x‖ = R, exact")
    ax.plot(R**2, bound, "--", color=GREEN, label=f"proved, with probability {confidence:g}")
    x, y = "R² (radius of tokens and queries, squared)", "C(R) = √n · largest error over ‖x‖ ≤ R"
    finish(ax, x, y, "A straight line is exponential growth in R²", log="y")
    return figure


def _arrays(rows: Sequence[Constant]) -> tuple[np.ndarray, ...]:
    return tuple(np.array([[row.R, row.C, row.C_error, row.bound] for row in rows]).T)


def moment_constant_figure(rows: Sequence[MomentConstant], rate: float) -> Figure:
    """n^{1/(2(1+H²))} times the error of the outputs' mean and covariance; `rate` is that of the uniform constant."""
    figure, ax = axes()
    for k, statistic in enumerate(dict.fromkeys(row.statistic for row in rows)):
        R, C, error, bound = _arrays([row for row in rows if row.statistic == statistic])
        label, colour = f"{statistic}, measured, 95 % intervals", (BLUE, ORANGE)[k]
        dots(ax, R, C, 1.96 * error, "os"[k], colour, label, markersize=5)
        if k == 0:
            ax.plot(R, bound, "--", color=GREEN, label="proved for the map, averaged over queries")
            fine = np.linspace(R.min(), R.max(), 200)
            curve = C[0] * np.exp(rate * (fine**2 - R[0] ** 2))
            ax.plot(fine, curve, ":", color=BLACK, label="the uniform constant's growth")
            ax.set_ylim(min(row.C for row in rows) / 3, 30 * bound.max())
    y = "C'(R) = largest $n^{1/(2(1+H^2))}$ · rms error"
    finish(ax, "R (radius of the tokens)", y, "A straight line is a power of R", log="xy")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("{x:g}")
    return figure


def gradient_concentration_figure(points: Sequence[Concentrated], quantities: Mapping[str, str]) -> Figure:
    """A series of dots for each horizon; dashes are exact outputs."""
    drawn, found = panels(len(quantities), width=1.0 + 3.7 * len(quantities))
    for ax, (name, words) in zip(found, quantities.items(), strict=True):
        for point, shade in zip(points, shades(len(points), 0.9), strict=True):
            curve, n = point.curves[name], np.array(point.n, dtype=float)
            horizon = "" if point.limit is None else f"H = {point.limit.horizon:.3g}, "
            label = f"{horizon}slope −{point.fits[name].exponent:.2f}"
            half = 1.96 * curve.rms_standard_error
            dots(ax, n, curve.rms, half, "o", shade, label, markersize=3, capsize=2)
            if name == "output" and point.exact is not None:
                ax.plot(n, point.exact.error, "--", color=shade, linewidth=1)
        title = f"{words}; dashes: exact" if name == "output" else words
        finish(ax, "prompt length L", "", title, log="xy", legend={"loc": "lower left"})
    found[0].set_ylabel("rms distance to the infinite prompt, 95 %")
    return drawn


RULES = {
    "log": (BLUE, "o", "κ = log n"),
    "infinite": (ORANGE, "s", "hardmax over n keys"),
    "best": (GREEN, "D", "best κ for each n"),
}


@pictures.register(Distance)
def _pictures(first: Distance, name: str, points: Sequence[Point[Distance]]) -> list[StudyFigure]:
    drawn = hardmax_figure([one.result for one in points])
    return [StudyFigure("hardmax", "The way to hardmax", "Exact; both axes are logarithmic.", drawn)]


def hardmax_figure(found: Sequence[Distance]) -> Figure:
    """One panel a dimension."""
    dims = list(dict.fromkeys(one.dim for one in found))
    figure, boxes = panels(len(dims), width=1.2 + 3.5 * len(dims), height=4.2)
    for ax, dim in zip(boxes, dims, strict=True):
        for one in found:
            if one.dim != dim:
                continue
            colour, marker, words = RULES[one.rule]
            n = np.array(one.n, dtype=float)
            ax.plot(n, one.rms, marker, color=colour, markersize=4, label=words)
            if one.rule == "log" and len(n) > 2:
                law = fit_log(one.n, one.rms).predict(one.n)
                ax.plot(n, law, "--", color=BLACK, linewidth=1, label="C/log n through it")
            elif one.rule != "log":
                power = 2 / (dim + 1) if one.rule == "best" else 1 / (dim - 1)
                guide = float(one.rms[-1]) * (n / n[-1]) ** -power
                ax.plot(n, guide, ":", color=colour, label=f"slope −{power:.3g}")
        title, where = f"unit sphere of $R^{{{dim}}}$", {"loc": "lower left"}
        finish(ax, "keys n", "", title, log="xy", legend=where, ylim=(3e-7, 1.5))
    boxes[0].set_ylabel("rms distance to the hardmax limit, exact (radius 1)")
    return figure
