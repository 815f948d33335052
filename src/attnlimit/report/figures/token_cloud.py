"""The token cloud of a layer by t-SNE with subsamples in it, and how well they cover it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 3


def token_cloud_figure(point: Mapping[str, Any], title: str) -> Figure:
    """`point` has picture (points, 2), order, n, and energy and nearest with their standard errors."""
    figure, axes = panels(SHOWN + 1, 15.0, 4.2)
    picture, order = np.array(point["picture"]), np.array(point["order"])
    sizes = _shown(point["n"])
    for ax, n in zip(axes, sizes, strict=False):
        ax.plot(*picture.T, ".", color="0.8", markersize=3)
        ax.plot(*picture[order[:n]].T, ".", color=BLUE, markersize=5)
        ax.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
        ax.set_title(f"{n} of {point['points']} tokens", fontsize=10, loc="left")
    for ax in axes[len(sizes) : SHOWN]:
        ax.set_axis_off()
    _coverage(axes[-1], point)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _shown(sizes: list[int]) -> list[int]:
    """The first, a middle and the last."""
    return sorted({sizes[round(k * (len(sizes) - 1) / (SHOWN - 1))] for k in range(SHOWN)})


def _coverage(ax: Axes, point: Mapping[str, Any]) -> None:
    n = np.array(point["n"], dtype=float)
    names = (
        ("energy", "squared energy distance", ORANGE, "o"),
        ("nearest", "distance to the nearest", GREEN, "s"),
    )
    for name, words, colour, marker in names:
        half = 1.96 * np.array(point[f"{name}_standard_error"])
        ax.errorbar(n, point[name], yerr=half, fmt=marker, color=colour, markersize=4, capsize=3, label=words)
    fine, total = np.geomspace(n[0], n[-1], 100), point["points"]
    predicted = (total - fine) / (fine * (total - 1))
    ax.plot(fine, predicted, "-", color=BLACK, linewidth=1, label="predicted: (N − n)/(n(N − 1))")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="tokens n of the subsample",
        ylabel="over the mean distance of two tokens",
    )
    ax.set_title(f"Coverage, {point['draws']} draws, 95 % intervals", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=8)
