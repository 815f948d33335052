"""Errors of outputs and gradients against prompt length, one panel a quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnlimit.drawing import Figure
from attnlimit.report.figures.style import panels
from attnlimit.studies.kinds.concentration import Concentrated


def gradient_concentration_figure(points: Sequence[Concentrated], quantities: Mapping[str, str]) -> Figure:
    """A series of dots for each horizon; dashes are exact outputs."""
    from matplotlib import colormaps

    drawn, found = panels(len(quantities), width=1.0 + 3.7 * len(quantities))
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(points)))
    for ax, (name, words) in zip(found, quantities.items(), strict=True):
        for point, shade in zip(points, shades, strict=True):
            curve, n = point.curves[name], np.array(point.n, dtype=float)
            horizon = "" if point.limit is None else f"H = {point.limit.horizon:.3g}, "
            ax.errorbar(n, curve.rms, yerr=1.96 * curve.rms_standard_error, fmt="o", markersize=3, capsize=2, color=shade,
                        label=f"{horizon}slope −{point.fits[name].exponent:.2f}")  # fmt: skip
            if name == "output" and point.exact is not None:
                ax.plot(n, point.exact.error, "--", color=shade, linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel="prompt length L")
        title = f"{words}; dashes: exact" if name == "output" else words
        ax.set_title(title, fontsize=10, loc="left")
        ax.legend(frameon=False, fontsize=7.5, loc="lower left")
    found[0].set_ylabel("rms distance to the infinite prompt, 95 %")
    return drawn
