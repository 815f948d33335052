"""Length generalisation: models trained at one prompt length, tested at others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlimit.errors import InputError
from attnlimit.icl.training import Training, over_seeds
from attnlimit.report.figures.icl_trajectory import _some
from attnlimit.report.figures.style import axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lengths_figure(run: Training, title: str = "", level: float = 0.95) -> Figure:
    """Risk at each test length; a line for each length trained on, at most five."""
    if not run.test_lengths:
        raise InputError("No other prompt lengths were tested: train with test_lengths=….")
    from matplotlib import colormaps

    figure, ax = axes()
    mean, low, high = over_seeds(run.test_risk[-1].movedim(0, -1), level)
    order = sorted(range(len(run.test_lengths)), key=lambda t: run.test_lengths[t])
    n = [run.test_lengths[t] for t in order]
    chosen = _some(run.lengths)
    for k, m in enumerate(chosen):
        colour = colormaps["viridis_r"](0.15 + 0.8 * k / max(1, len(chosen) - 1))
        ax.plot(
            n, mean[m, order], "o-", color=colour, markersize=4, label=f"trained at L = {run.lengths[m]:,}"
        )
        ax.fill_between(n, low[m, order], high[m, order], color=colour, alpha=0.15, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="prompt length at test", ylabel="risk")
    ax.set_title(title or f"{run.attention} attention", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=8)
    return figure
