"""Figures of a study, by the type of its results: error against n at every point, fitted exponents against the horizon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import groupby
from typing import Any

import numpy as np

from attnlimit.drawing import Figure
from attnlimit.numerics.words import counted
from attnlimit.rates import exponents
from attnlimit.report.figures import register
from attnlimit.report.figures.style import BLACK, COLOURS, GREEN, axes, bars, shades
from attnlimit.studies.kind import Point, Result, plain
from attnlimit.studies.setting import CurveResult

MOST_LINES = 12
MARKERS = "osD^vP"


@dataclass(frozen=True)
class StudyFigure:
    """A figure with its name, which files have, and its words."""

    name: str
    title: str
    caption: str
    figure: Figure


def study_pictures(name: str, points: Sequence[Point[Any]]) -> list[StudyFigure]:
    """What a study of that name can show."""
    register()
    return pictures(points[0].result, name, points) if points else []


@singledispatch
def pictures(first: Result, name: str, points: Sequence[Point[Any]]) -> list[StudyFigure]:
    """For points whose results are of the type of the `first`; `@pictures.register(…)` beside each figure says for which."""
    return []


@pictures.register(CurveResult)
def _curves(first: CurveResult, name: str, points: Sequence[Point[CurveResult]]) -> list[StudyFigure]:
    words = "Both axes are logarithmic; bands are 95 % intervals."
    found = [StudyFigure("curves", "Error against the number of tokens", words, curves(name, points))]
    horizons = {one.result.horizon for one in points if one.result.fit is not None} - {None}
    if len(horizons) > 1:
        words = "Exponents fitted to the curves, with intervals, against the head's horizon."
        found.append(StudyFigure("slopes", "How fast it falls", words, slopes(name, points)))
    return found


def curves(name: str, points: Sequence[Point[CurveResult]]) -> Figure:
    """The rms error with 95 % intervals; of many points, some spread over all."""
    shown = points[:: max(1, -(-len(points) // MOST_LINES))]
    figure, ax = axes(6.8, 4.6)
    for point, colour in zip(shown, colours(len(shown)), strict=True):
        curve = point.result.curve
        n, rms = np.array(curve.n, dtype=float), curve.error.numpy()
        ax.plot(n, rms, "o-", color=colour, markersize=3, label=point.label)
        if curve.standard_error is not None:
            half = 1.96 * np.nan_to_num(curve.standard_error.numpy(), posinf=0.0)
            ax.fill_between(
                n, np.maximum(rms - half, rms * 1e-3), rms + half, color=colour, alpha=0.15, linewidth=0
            )
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="rms error (unit of the outputs)")
    ax.set_title(title(name, points, len(shown)), fontsize=10)
    if len(shown) > 1:
        ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def slopes(name: str, points: Sequence[Point[CurveResult]]) -> Figure:
    """The fitted exponents with their intervals, and what is known of them as n → ∞."""
    figure, ax = axes(6.8, 4.6)
    known = [
        (_rest(one), one.result.horizon, fit, one.result)
        for one in points
        if (fit := one.result.fit) is not None and one.result.horizon is not None
    ]
    known.sort(key=lambda one: one[:2])
    for k, (words, group) in enumerate(groupby(known, lambda one: one[0])):
        series = list(group)
        exponent = np.array([fit.exponent for *_, fit, _ in series])
        ax.errorbar(
            [H for _, H, *_ in series],
            exponent,
            yerr=bars(exponent, [fit.interval for *_, fit, _ in series]),
            fmt=MARKERS[k % len(MARKERS)] + "-",
            color=COLOURS[k % len(COLOURS)],
            markersize=4,
            capsize=3,
            label=f"fitted, {words or series[0][3].error_of}",
        )
    axis = np.linspace(0.0, 1.05 * max(H for _, H, *_ in known), 100)
    asymptotic = [exponents(h) for h in axis]
    ax.plot(axis, [float(one.paper) for one in asymptotic], ":", color=GREEN, label="published bound, n → ∞")
    words = "mean error of the map, n → ∞"
    ax.plot(axis, [float(one.mean) for one in asymptotic], "--", color=BLACK, label=words)
    level = 100 * known[0][2].level
    ax.set(xlabel="horizon H", ylabel=f"exponent of n, {level:g} % intervals", ylim=(0, None))
    ax.set_title(title(name, points, len(known)), fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    return figure


def _rest(point: Point[Any]) -> str:
    """What tells a series apart: all that varies but the horizon."""
    return ", ".join(plain(value) for path, value in point.varies.items() if not path.endswith("horizon"))


def title(name: str, points: Sequence[Point[Any]], shown: int) -> str:
    """The study's name, how many of its points are shown, and their replicates."""
    some = f"{shown} of {counted(len(points), 'point')}" if shown < len(points) else counted(shown, "point")
    replicates = {one.result.replicates for one in points} - {None}
    how = f", {min(replicates)}–{max(replicates)} replicates" if len(replicates) > 1 else ""
    how = f", {counted(replicates.pop(), 'replicate')}" if len(replicates) == 1 else how
    return f"{name}: {some}{how}"


def colours(count: int) -> list[Any]:
    """Neighbouring points in neighbouring colours; the palette where there are few."""
    return list(COLOURS[:count] if count <= len(COLOURS) else shades(count))
