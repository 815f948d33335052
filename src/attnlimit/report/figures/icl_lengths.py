"""Length generalisation: models trained at one prompt length, tested at others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnlimit.errors import InputError
from attnlimit.icl.training import Training, over_seeds
from attnlimit.report.figures.icl_trajectory import some
from attnlimit.report.figures.style import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def lengths_figure(runs: Mapping[str, Training], level: float = 0.95) -> Figure:
    """A panel for each run, under its words: risk at each test length, a line for each length trained on, at most five."""
    if not all(run.test_lengths for run in runs.values()):
        raise InputError("No other prompt lengths were tested: train with Evaluation(test_lengths=…).")
    drawn, found = panels(len(runs), width=1.0 + 4.0 * len(runs))
    for ax, (words, run) in zip(found, runs.items(), strict=True):
        _panel(ax, run, level)
        ax.set_title(words, fontsize=10, loc="left")
    found[0].set_ylabel("risk")
    found[0].legend(frameon=False, fontsize=8)
    return drawn


def _panel(ax: Axes, run: Training, level: float) -> None:
    from matplotlib import colormaps

    mean, low, high = over_seeds(run.test_risk[-1].movedim(0, -1), level)
    order = sorted(range(len(run.test_lengths)), key=lambda t: run.test_lengths[t])
    n = [run.test_lengths[t] for t in order]
    chosen = some(run.lengths)
    for k, m in enumerate(chosen):
        colour = colormaps["viridis_r"](0.15 + 0.8 * k / max(1, len(chosen) - 1))
        label = f"trained at L = {run.lengths[m]:,}"
        ax.plot(n, mean[m, order], "o-", color=colour, markersize=4, label=label)
        ax.fill_between(n, low[m, order], high[m, order], color=colour, alpha=0.15, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="prompt length at test")
