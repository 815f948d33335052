"""Error against the hardmax limit for rules that sharpen the scores with n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.rates import fit_log
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULES = {
    "log": (BLUE, "o", "κ = log n"),
    "infinite": (ORANGE, "s", "hardmax over n keys"),
    "best": (GREEN, "D", "best κ for each n"),
}


def hardmax_figure(points: Sequence[Mapping[str, Any]]) -> Figure:
    """One panel a dimension; `points` have dim, kappa (the rule), n and rms."""
    dims = list(dict.fromkeys(point["dim"] for point in points))
    figure, found = panels(len(dims), width=1.2 + 3.5 * len(dims), height=4.2)
    for ax, dim in zip(found, dims, strict=True):
        for point in (one for one in points if one["dim"] == dim):
            colour, marker, words = RULES[point["kappa"]]
            n = np.array(point["n"], dtype=float)
            ax.plot(n, point["rms"], marker, color=colour, markersize=4, label=words)
            if point["kappa"] == "log":
                law = fit_log(point["n"], point["rms"]).predict(point["n"])
                ax.plot(n, law, "--", color=BLACK, linewidth=1, label="C/log n through it")
            else:
                power = 2 / (dim + 1) if point["kappa"] == "best" else 1 / (dim - 1)
                guide = point["rms"][-1] * (n / n[-1]) ** -power
                ax.plot(n, guide, ":", color=colour, label=f"slope −{power:.3g}")
        ax.set(xscale="log", yscale="log", xlabel="keys n", ylim=(3e-7, 1.5))
        ax.set_title(f"unit sphere of $R^{{{dim}}}$", fontsize=10, loc="left")
        ax.legend(frameon=False, fontsize=7.5, loc="lower left")
    found[0].set_ylabel("rms distance to the hardmax limit, exact (radius 1)")
    return figure
