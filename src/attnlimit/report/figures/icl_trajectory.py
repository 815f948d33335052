"""Along training: risk, and how far weights and gradients are from the infinite-prompt flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from attnlimit.errors import InputError
from attnlimit.icl.training import Training, over_seeds
from attnlimit.report.figures.style import BLACK, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 5
PANELS = {
    "risk": "risk at length L",
    "parameter_gap": "distance of weights to the flow",
    "gradient_gap": "gradient gap ‖∇R_L − ∇R_∞‖",
}


def trajectory_figure(runs: Sequence[Training], title: str = "", level: float = 0.95) -> Figure:
    """A row for each attention; at most five lengths, evenly chosen, from light (short) to dark (long)."""
    if not runs:
        raise InputError("There is no training to draw: give at least one.")
    names = [name for name in PANELS if all(getattr(run, name) is not None for run in runs)]
    figure, first = axes(width=3.9 * len(names), height=3.0 * len(runs) + 0.6)
    first.remove()
    grid = figure.subplots(len(runs), len(names), squeeze=False, sharex=True, sharey="col")
    for row, run in zip(grid, runs, strict=True):
        for ax, name in zip(row, names, strict=True):
            _panel(ax, run, name, level)
        row[0].set_ylabel(f"{run.attention} attention\n\n{row[0].get_ylabel()}")
    for ax in grid[-1]:
        ax.set_ylim(bottom=0)  # when all of a column is drawn: it fixes the other end too
        ax.set_xlabel("flow time = Σ step sizes" if runs[0].times is not None else "training step")
    seeds = runs[0].risk.shape[1]
    spread = f"{seeds} seeds, {level:.0%} intervals" if seeds > 1 else "one seed"
    grid[0, 0].legend(frameon=False, fontsize=7, title=spread, title_fontsize=7)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _panel(ax: Axes, run: Training, name: str, level: float) -> None:
    from matplotlib import colormaps

    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    x = torch.tensor(run.steps[1:]).double() if run.times is None else run.times[1:]
    mean, low, high = over_seeds(getattr(run, name)[1:].movedim(1, -1), level)
    chosen = _some(run.lengths)
    for k, m in enumerate(chosen):
        colour = colormaps["viridis_r"](0.15 + 0.8 * k / max(1, len(chosen) - 1))
        ax.plot(x, mean[:, m], color=colour, linewidth=1.4, label=f"L = {run.lengths[m]:,}")
        ax.fill_between(x, low[:, m].clamp_min(0), high[:, m], color=colour, alpha=0.15, linewidth=0)
    if name == "risk" and run.flow_risk is not None:
        ax.plot(x, run.flow_risk[1:].mean(1), "--", color=BLACK, linewidth=1, label="L = ∞ (flow)")
    ax.set(xscale="log", ylabel=PANELS[name])


def _some(lengths: Sequence[int]) -> list[int]:
    """Places of at most five lengths, evenly spread in order of size, the ends among them."""
    order = sorted(range(len(lengths)), key=lambda m: lengths[m])
    if len(order) <= SHOWN:
        return order
    return [order[round(k * (len(order) - 1) / (SHOWN - 1))] for k in range(SHOWN)]
