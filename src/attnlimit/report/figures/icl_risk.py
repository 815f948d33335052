"""Risk of trained models against the prompt length: softmax, linear attention, the floor and the prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.icl.comparison import Comparison
from attnlimit.report.figures.icl_training import seeds
from attnlimit.report.figures.style import BLUE, GREEN, ORANGE, panels

ATTENTIONS = {"softmax": (BLUE, "o"), "linear": (ORANGE, "s")}


def risk_figure(tasks: Sequence[Comparison]) -> Figure:
    """A panel a task: mean over seeds with t intervals; as lines the exact risk of weights tuned to that length without
    training, dashed that of the infinite-prompt solution, dotted ridge regression or another floor."""
    drawn, found = panels(len(tasks), width=1.0 + 4.6 * len(tasks), height=4.6)
    for ax, task in zip(found, tasks, strict=True):
        _panel(ax, task)
    handles = {
        label: handle for ax in found for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    drawn.legend(
        handles.values(), handles.keys(), frameon=False, fontsize=8, loc="outside lower center", ncols=3
    )
    run = tasks[0].any_run
    found[0].set_ylabel(f"risk after {run.steps[-1]:,} steps, {seeds(run)}")
    return drawn


@figure.register(Comparison)
def _(task: Comparison) -> Figure:
    return risk_figure([task])


def _panel(ax: Axes, task: Comparison) -> None:
    order = sorted(range(len(task.lengths)), key=lambda m: task.lengths[m])
    L = torch.tensor(task.lengths, dtype=torch.float64)[order]
    for name, (colour, marker) in ATTENTIONS.items():
        if name in task.runs:
            mean, low, high = (values[order] for values in task.ending(name))
            ends = torch.stack([mean - low, high - mean]).nan_to_num(0.0)
            ax.errorbar(L, mean, yerr=ends, fmt=marker, color=colour, markersize=5, capsize=3,
                        label=f"{name} attention, trained")  # fmt: skip
        if name in task.predicted:
            label = f"{name}, tuned without training (exact)"
            ax.plot(L, task.predicted[name][order], "-", color=colour, linewidth=1, label=label)
    if task.solution is not None:
        label = "softmax, infinite-prompt solution (exact)"
        ax.plot(L, task.solution[order], "--", color=BLUE, linewidth=1, label=label)
    floor = task.floor
    if task.floors is not None and floor is not None:
        label = "ridge regression (Bayes)" if "ridge" in task.floors[0].kind else "floor"
        ax.plot(L, floor[order], ":", color=GREEN, linewidth=2, label=label)
    positive = floor is None or bool((floor > 0).all())
    ax.set(xscale="log", yscale="log" if positive else "linear", xlabel="prompt length L")
    ax.set_title(task.name, fontsize=10, loc="left")
