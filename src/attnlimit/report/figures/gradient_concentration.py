"""Errors of outputs and gradients against prompt length, one panel a quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.report.figures.style import panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gradient_concentration_figure(
    points: Sequence[Mapping[str, Any]], quantities: Mapping[str, str]
) -> Figure:
    """`points` have horizon, n, and rms, rms_standard_error and fit for every quantity; dashes are exact outputs."""
    from matplotlib import colormaps

    figure, found = panels(len(quantities), width=1.0 + 3.7 * len(quantities))
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(points)))
    for ax, (name, words) in zip(found, quantities.items(), strict=True):
        for point, shade in zip(points, shades, strict=True):
            n, rms, error = (
                np.array(values, dtype=float)
                for values in (point["n"], point[name]["rms"], point[name]["rms_standard_error"])
            )
            label = f"H = {point['horizon']:.3g}, slope −{point[name]['fit']['exponent']:.2f}"
            ax.errorbar(n, rms, yerr=1.96 * error, fmt="o", markersize=3, capsize=2, color=shade, label=label)
            if name == "output" and point["exact_output_rms"] is not None:
                ax.plot(n, point["exact_output_rms"], "--", color=shade, linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel="prompt length L")
        title = f"{words}; dashes: exact" if name == "output" else words
        ax.set_title(title, fontsize=10, loc="left")
        ax.legend(frameon=False, fontsize=7.5, loc="lower left")
    found[0].set_ylabel("rms distance to the infinite prompt, 95 %")
    return figure
