"""In-context regressions: risk against prompt length, and gaps to the infinite-prompt flow along training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnlimit.icl.training import over_seeds
from attnlimit.report.figures.style import BLUE, GREEN, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ATTENTIONS = {"softmax": (BLUE, "o"), "linear": (ORANGE, "s")}
GAPS = {
    "parameter_gap": "distance of the weights to the flow",
    "gradient_gap": "gradient gap ‖∇R_L − ∇R_∞‖",
}


def risk_figure(tasks: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel a task; each has words, lengths, floor, untrained, and by attention risks (replicates, lengths) and those
    predicted."""
    figure, found = panels(len(tasks), width=1.0 + 4.6 * len(tasks), height=4.6)
    for ax, task in zip(found, tasks, strict=True):
        L = np.array(task["lengths"], dtype=float)
        for name, (colour, marker) in ATTENTIONS.items():
            if name in task:
                mean, low, high = _over(task[name])
                ends = [mean - low, high - mean]
                ax.errorbar(
                    L,
                    mean,
                    yerr=ends,
                    fmt=marker,
                    color=colour,
                    markersize=5,
                    capsize=3,
                    label=f"{name}, trained",
                )
                ax.plot(
                    L,
                    task["predicted"][name],
                    "-",
                    color=colour,
                    linewidth=1,
                    label=f"{name}, tuned without training, exact",
                )
        ax.plot(
            L,
            task["untrained"],
            "--",
            color=BLUE,
            linewidth=1,
            label="softmax, infinite-prompt solution, exact",
        )
        ax.plot(L, task["floor"], ":", color=GREEN, linewidth=2, label="ridge regression (Bayes)")
        ax.set(xscale="log", yscale="log", xlabel="prompt length L")
        ax.set_title(task["words"], fontsize=10, loc="left")
    figure.legend(
        *found[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=3
    )
    seeds = len(next(tasks[0][name] for name in ATTENTIONS if name in tasks[0]))
    found[0].set_ylabel(f"risk without the answer's noise, {seeds} seeds, 95 %")
    return figure


def trajectory_figure(tasks: Sequence[tuple[str, Sequence[int], Mapping[str, Any]]]) -> Figure:
    """Two panels a task: (words, lengths, gaps along training as lists (replicate, report, length)); mean and range."""
    figure, found = panels(2 * len(tasks), width=3.4 * 2 * len(tasks) + 0.8, height=3.8)
    for k, (words, lengths, along) in enumerate(tasks):
        for ax, (name, label) in zip(found[2 * k :], GAPS.items(), strict=False):
            _gap(ax, lengths, along, name)
            ax.set(xlabel="flow time = Σ step sizes", ylabel=label)
            ax.set_title(words, fontsize=10, loc="left")
    found[0].legend(frameon=False, fontsize=8, title="mean and range of seeds", title_fontsize=8)
    return figure


def _gap(ax: Axes, lengths: Sequence[int], along: Mapping[str, Any], name: str) -> None:
    from matplotlib import colormaps

    ax.set(xscale="log", yscale="log")
    time = np.array(along["time"], dtype=float)[1:]
    values = np.array(along[name], dtype=float)[:, 1:]
    shades = colormaps["viridis_r"](np.linspace(0.15, 0.95, len(lengths)))
    means = values.mean(0)
    least = (
        means[means > 0].min(initial=np.inf) / 2
    )  # 0: no gap above the noise, which a logarithm cannot show
    for m, (length, shade) in enumerate(zip(lengths, shades, strict=True)):
        each = np.maximum(values[:, :, m], least)
        ax.plot(time, np.where(means[:, m] > 0, means[:, m], np.nan), color=shade, label=f"L = {length:,}")
        ax.fill_between(time, each.min(0), each.max(0), color=shade, alpha=0.15, linewidth=0)
    ax.set(xlim=(time[0], time[-1]), ylim=(least, None))


def _over(values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and interval over replicates, the first axis."""
    mean, low, high = over_seeds(torch.tensor(np.asarray(values, dtype=float)).movedim(0, -1))
    return mean.numpy(), low.numpy(), high.numpy()
