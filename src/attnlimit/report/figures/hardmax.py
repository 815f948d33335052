"""Error against the hardmax limit for rules that sharpen the scores with n."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnlimit.drawing import Figure
from attnlimit.rates import fit_log
from attnlimit.report.figures.study import StudyFigure, pictures
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, panels
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.hardmax import Distance

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
        ax.set(xscale="log", yscale="log", xlabel="keys n", ylim=(3e-7, 1.5))
        ax.set_title(f"unit sphere of $R^{{{dim}}}$", fontsize=10, loc="left")
        ax.legend(frameon=False, fontsize=7.5, loc="lower left")
    boxes[0].set_ylabel("rms distance to the hardmax limit, exact (radius 1)")
    return figure
