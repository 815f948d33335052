"""The risk of trained models against the length of their prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnlimit.report.figures.study import MOST_LINES, StudyFigure, pictures, shades
from attnlimit.report.figures.style import axes
from attnlimit.studies.kind import Point
from attnlimit.studies.untyped import Untyped


@pictures.register(Untyped)
def risks(first: Untyped, name: str, points: Sequence[Point[Untyped]]) -> list[StudyFigure]:
    told = [one.result.summary() for one in points]
    if not all("risk" in one and "lengths" in one for one in told):
        return []
    shown = list(zip(points, told, strict=True))[:MOST_LINES]
    figure, ax = axes(6.8, 4.6)
    for (point, record), colour in zip(shown, shades(len(shown)), strict=True):
        L, risk = np.array(record["lengths"], dtype=float), np.array(record["risk"], dtype=float)
        ax.plot(L, risk, "o-", color=colour, markersize=4, label=point.label)
        low, high = (np.array(end, dtype=float) for end in record["risk_interval"])
        ax.fill_between(L, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="prompt length L", ylabel="risk at the end of training")
    ax.set_title(name, fontsize=10)
    if len(shown) > 1:
        ax.legend(frameon=False, fontsize=8)
    words = "When training ends; intervals are over replicates."
    return [StudyFigure("risks", "Risk against the prompt length", words, figure)]
