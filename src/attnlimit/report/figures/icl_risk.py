"""Risk of trained models against the prompt length: softmax, linear attention, the floor and the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlimit.icl.sweep import TaskRuns
from attnlimit.icl.training import over_seeds
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"softmax": BLUE, "linear": ORANGE}


def risk_figure(part: TaskRuns, level: float = 0.95) -> Figure:
    """Mean over seeds with t intervals; ridge regression or another floor below; as lines the exact risk of weights tuned to
    that length without training, and dashed that of the infinite-prompt solution."""
    figure, ax = axes()
    run = next(iter(part.runs.values()))
    for attention, one in part.runs.items():
        mean, low, high = over_seeds(one.risk[-1].T, level)
        order = sorted(range(len(one.lengths)), key=lambda m: one.lengths[m])
        n = [one.lengths[m] for m in order]
        ax.plot(
            n,
            mean[order],
            "o",
            color=COLOURS[attention],
            markersize=4,
            label=f"{attention} attention, trained",
        )
        ax.fill_between(n, low[order], high[order], color=COLOURS[attention], alpha=0.2, linewidth=0)
    order = sorted(range(len(run.lengths)), key=lambda m: run.lengths[m])
    n = [run.lengths[m] for m in order]
    if part.floors is not None:
        name = "ridge regression" if "ridge" in part.floors[0].kind else "floor"
        ax.plot(n, [part.floors[m].value for m in order], "s-", color=GREEN, markersize=3, label=name)
    for attention, risks in part.predicted.items():
        words = f"{attention}, tuned without training (exact)"
        ax.plot(n, [risks[m] for m in order], "-", color=COLOURS[attention], linewidth=1, label=words)
    if part.transferred is not None:
        exact = part.transferred.risk[order]
        ax.plot(n, exact, "--", color=BLACK, linewidth=1, label="softmax, infinite-prompt solution (exact)")
    positive = part.floors is None or all(floor.value > 0 for floor in part.floors)
    ax.set(xscale="log", yscale="log" if positive else "linear", xlabel="prompt length L", ylabel="risk")
    ax.set_title(part.name, fontsize=10, loc="left")
    seeds = run.risk.shape[1]
    spread = f"{seeds} seeds, {level:.0%} intervals" if seeds > 1 else "one seed"
    ax.legend(frameon=False, fontsize=8, title=f"{run.steps[-1]:,} steps, {spread}", title_fontsize=8)
    return figure
