"""The phase diagram as a figure."""

from __future__ import annotations

import math

import numpy as np

from attnlimit import drawing
from attnlimit.drawing import Axes, Figure
from attnlimit.errors import InputError
from attnlimit.exact.phase import PhaseDiagram
from attnlimit.report.figures.style import BLACK, axes

LINES = (
    ("log_n_averaging", "-", "central limit theorem ends", "s² = ½ log n"),
    ("log_n_reached", "--", "the limit is reached", "s² = 2 log n"),
)


@drawing.figure.register(PhaseDiagram)
def phase_figure(diagram: PhaseDiagram) -> Figure:
    """Heat map of the relative error on (κ, n), in decades, with its contours, the two lines and the phases."""
    if len(diagram.kappa) < 2 or len(diagram.n) < 2:
        raise InputError(
            f"A phase figure needs at least 2 values of κ and of n, got {len(diagram.kappa)} and {len(diagram.n)}."
        )
    figure, ax = axes(7.2, 4.8)
    kappa, n = np.array(diagram.kappa), np.array(diagram.n, dtype=float)
    error = np.log10(np.maximum(diagram.relative_rms.numpy(), 1e-12)).T
    shade = ax.pcolormesh(kappa, n, error, cmap="cividis", shading="gouraud", rasterized=True)
    figure.colorbar(shade, ax=ax, label="log₁₀ (rms error / rms size of attended tokens)", pad=0.02)
    levels = [level for level in range(-12, 0) if error.min() < level < error.max()]
    if levels:
        ax.contour(kappa, n, error, levels, colors="0.15", linewidths=0.6, linestyles=":")
    ax.set(yscale="log", xlim=(kappa.min(), kappa.max()), ylim=(n.min(), n.max()))
    ax.set(xlabel="κ: standard deviation of the scores, s", ylabel="n: number of keys")
    ax.set_title(f"Attention over {diagram.law}, {diagram.method}", loc="left", fontsize="medium")
    ax.grid(False)
    gaussian = diagram.law.startswith("Gaussian")
    for name, dash, words, formula in LINES:
        log_n = getattr(diagram, name).numpy()
        label = f"{words}: {formula}" if gaussian else words
        ax.plot(kappa, np.exp(np.minimum(log_n, 700.0)), dash, color=BLACK, linewidth=1.8, label=label)
    ax.plot([], [], ":", color="0.15", linewidth=0.8, label="one decade of error")
    _name_phases(ax, diagram)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


def _name_phases(ax: Axes, diagram: PhaseDiagram) -> None:
    """Each phase's name at the middle of its part of the grid, where it has a part worth naming."""
    region = np.array(diagram.region)
    kappa, log_n = np.array(diagram.kappa), np.log(np.array(diagram.n, dtype=float))
    for name in np.unique(region):
        inside = region == name
        if inside.mean() < 0.04:
            continue
        rows, columns = np.nonzero(inside)
        x, y = kappa[rows].mean(), log_n[columns].mean()
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        ax.text(x, math.exp(y), str(name), ha="center", va="center", bbox=box)
