"""Figures of a study, by the type of its results: error against n at every point, fitted exponents against the horizon, phase
diagrams, trainings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import groupby
from typing import Any

import numpy as np

from attnlimit.drawing import Figure
from attnlimit.numerics.words import counted
from attnlimit.report.figures import register
from attnlimit.report.figures.curves import draw_curve
from attnlimit.report.figures.icl import lengths_figure, risk_figure, trajectory_figure
from attnlimit.report.figures.phase import phase_figure
from attnlimit.report.figures.style import (
    BESIDE,
    COLOURS,
    MARKERS,
    axes,
    exponent_lines,
    finish,
    fitted_dots,
    shades,
)
from attnlimit.studies.kind import Point, Result, plain
from attnlimit.studies.kinds.icl import Trained, comparisons
from attnlimit.studies.kinds.phase import Plane
from attnlimit.studies.setting import CurveResult

MOST_LINES = 12


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
        draw_curve(ax, point.result.curve, colour, point.label)
    y, words = "rms error (unit of the outputs)", title(name, points, len(shown))
    finish(ax, "tokens n", y, words, log="xy", legend=BESIDE)
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
        look = (f"{MARKERS[k % len(MARKERS)]}-", COLOURS[k % len(COLOURS)])
        label = f"fitted, {words or series[0][3].error_of}"
        fitted_dots(ax, [fit for *_, fit, _ in series], [H for _, H, *_ in series], *look, label)
    axis = np.linspace(0.0, 1.05 * max(H for _, H, *_ in known), 100)
    exponent_lines(ax, axis, paper="published bound, n → ∞", mean="mean error of the map, n → ∞")
    y = f"exponent of n, {100 * known[0][2].level:g} % intervals"
    finish(ax, "horizon H", y, title(name, points, len(known)), ylim=(0, None))
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


@pictures.register(Plane)
def _pictures(first: Plane, name: str, points: Sequence[Point[Plane]]) -> list[StudyFigure]:
    words = "Exact relative errors, with the two lines of the random energy model."
    found = [(one.index, one.result.diagram) for one in points if len(one.result.diagram.n) > 1]
    return [StudyFigure(f"phase-{k}", f"Phases: {one.law}", words, phase_figure(one)) for k, one in found]


@pictures.register(Trained)
def _trainings(first: Trained, name: str, points: Sequence[Point[Trained]]) -> list[StudyFigure]:
    tasks = comparisons(points)
    words = "When training ends, with 95 % intervals over seeds; lines need no training."
    found = [StudyFigure("risk", "Risk against prompt length", words, risk_figure(tasks))]
    for place, task in enumerate(tasks):
        runs = {f"{attention} attention": run for attention, run in task.runs.items()}
        words = "Bands are 95 % intervals over seeds; the flow is that of the infinite prompt from the same start."
        drawn = trajectory_figure(runs, task.name)
        found.append(StudyFigure(f"trajectory-{place}", f"Along training: {task.name}", words, drawn))
        if task.any_run.test_lengths:
            words = "Trained at one length, tested at others; bands are 95 % intervals over seeds."
            title = f"On other prompt lengths: {task.name}"
            found.append(StudyFigure(f"lengths-{place}", title, words, lengths_figure(runs)))
    return found
