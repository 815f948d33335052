"""In-context learning: training on infinite prompts and its solution; trainings along the way, their risks at other prompt lengths, and
beside what is known without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.errors import InputError
from attnlimit.icl.flow import WeightPath
from attnlimit.icl.methods import MODELS, Attention
from attnlimit.icl.solutions import endpoint
from attnlimit.icl.tasks import LinearRegression
from attnlimit.icl.training import LEVEL, Comparison, Training, over_seeds
from attnlimit.icl.transfer import Transfer
from attnlimit.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    axes,
    dots,
    finish,
    panels,
    style,
    within,
)


@figure.register(WeightPath)
def flow_figure(path: WeightPath) -> Figure:
    """Risk and gradient norm against time; for the block form of regression also the distance to the closed-form end."""
    drawn, ax = axes()
    shown = path.times > 0
    t = path.times[shown]
    ax.plot(t, path.risk[shown], color=BLUE, linewidth=2, label="risk with an infinite prompt")
    ax.plot(t, path.gradient_norm[shown], "--", color=ORANGE, label="norm of the risk's gradient")
    if isinstance(path.task, LinearRegression) and path.form.startswith("block"):
        end = endpoint(path.task, float(path.U[0].square().sum() - path.V[0].square().sum()))
        away = torch.hypot(torch.linalg.matrix_norm(path.A - end.A), path.b - end.b)[shown]
        ax.plot(t, away, ":", color=GREEN, linewidth=2, label="distance of (A, b) to the closed-form end")
    if path.drift is not None:
        words = f"largest drift of ‖U‖² − ‖V‖²: {path.drift:.0e}"
        ax.axhline(max(path.drift, 1e-16), color=BLACK, linewidth=0.8, label=words)
    finish(ax, "training time (step size × steps)", "value", f"{path.task!r}, {path.form}", log="xy")
    return drawn


@figure.register(Transfer)
def transfer_figure(found: Transfer) -> Figure:
    """Risk of the infinite-prompt solution against length with 95 % intervals, the floor, and the length needed."""
    drawn, ax = axes(6.8, 4.8)
    n = torch.tensor(found.curve.lengths, dtype=torch.float64)
    spread = 1.96 * found.curve.standard_error
    label = "infinite-prompt solution, nothing trained"
    dots(ax, n, found.curve.risk, spread, "o-", BLUE, label, capsize=2)
    if bool((found.floor > 0).any()):
        ax.plot(n, found.floor, color=GREEN, label="least risk of any model at this length")
    if found.tuned_risk is not None and found.length is not None:
        words = f"tuned to L = {found.length:,}, nothing trained"
        ax.plot([found.length], [found.tuned_risk], "D", color=ORANGE, label=words)
    ax.axhline(found.zero_risk, color="0.5", linewidth=0.8, linestyle=":", label="predicting 0")
    if found.needed is not None:
        words = f"within {100 * found.rel_error:g} % from L = {found.needed:,} on"
        ax.axvline(found.needed, color=BLACK, linewidth=0.9, linestyle="--", label=words)
    finish(ax, "prompt length L (tokens)", "risk", repr(found.task), log="xy")
    return drawn


SHOWN = 5
RISK = {"risk": "risk at length L"}
GAPS = {
    "parameter_gap": "distance of weights to the flow",
    "gradient_gap": "gradient gap ‖∇R_L − ∇R_∞‖",
}


def trajectory_figure(
    runs: Mapping[str, Training], title: str = "", *, shown: Mapping[str, str] = RISK | GAPS
) -> Figure:
    """A row for each run, under its words; at most five lengths, evenly chosen, from light (short) to dark (long)."""
    if not runs:
        raise InputError("There is no training to draw: give at least one.")
    names = [name for name in shown if all(getattr(run, name) is not None for run in runs.values())]
    drawn, first = axes(width=3.9 * len(names), height=3.0 * len(runs) + 0.6)
    first.remove()
    grid = drawn.subplots(len(runs), len(names), squeeze=False, sharex=True, sharey="col")
    for row, (words, run) in zip(grid, runs.items(), strict=True):
        for ax, name in zip(row, names, strict=True):
            _along(ax, run, name)
            ax.set_ylabel(shown[name])
        row[0].set_ylabel(f"{words}\n\n{row[0].get_ylabel()}")
    for ax, name in zip(grid[-1], names, strict=True):  # a column shares its axis
        low, high = zip(*(_ends(getattr(run, name)[1:]) for run in runs.values()), strict=True)
        ax.set_ylim(min(low), max(high))  # the flow's risk falls out of it
    one = next(iter(runs.values()))
    for ax in grid[-1]:
        ax.set_xlabel("flow time = Σ step sizes" if one.times is not None else "training step")
    grid[0, 0].legend(frameon=False, fontsize=7, title=seeds(one), title_fontsize=7)
    if title:
        drawn.suptitle(title, fontsize=10)
    return drawn


@figure.register(Training)
def _(run: Training) -> Figure:
    return trajectory_figure({MODELS[run.attention]: run})


def lengths_figure(runs: Mapping[str, Training]) -> Figure:
    """A panel for each run, under its words: risk at each test length, a line for each length trained on, at most five."""
    if not all(run.test_lengths for run in runs.values()):
        raise InputError("No other prompt lengths were tested: train with Evaluation(test_lengths=…).")
    drawn, found = panels(len(runs), width=1.0 + 4.0 * len(runs))
    for ax, (words, run) in zip(found, runs.items(), strict=True):
        _at_other_lengths(ax, run)
        ax.set_title(words, fontsize=10, loc="left")
    found[0].set_ylabel("risk")
    found[0].legend(frameon=False, fontsize=8)
    return drawn


def _along(ax: Axes, run: Training, name: str) -> None:
    style(ax)
    x = torch.tensor(run.steps[1:]).double() if run.times is None else run.times[1:]
    mean, low, high = over_seeds(getattr(run, name)[1:].movedim(1, -1))
    least, _ = _ends(getattr(run, name)[1:])
    above, ends = mean.where(mean > 0, torch.nan), (low.clamp_min(least), high.clamp_min(least))
    _bands(ax, run, x, (above, *ends), "-", "L = ", linewidth=1.4)
    if name == "risk" and run.flow_risk is not None:
        ax.plot(x, run.flow_risk[1:].mean(1), "--", color=BLACK, linewidth=1, label="L = ∞ (flow)")
    ax.set(xscale="log", yscale="log")


def _at_other_lengths(ax: Axes, run: Training) -> None:
    order = sorted(range(len(run.test_lengths)), key=lambda t: run.test_lengths[t])
    found = tuple(part.T[order] for part in over_seeds(run.test_risk[-1].movedim(0, -1)))
    x = [run.test_lengths[t] for t in order]
    _bands(ax, run, x, found, "o-", "trained at L = ", markersize=4)
    ax.set(xscale="log", yscale="log", xlabel="prompt length at test")


def _bands(
    ax: Axes, run: Training, x: Any, found: tuple[Tensor, ...], line: str, words: str, **look: Any
) -> None:
    """(x, lengths): mean and both ends, for at most five lengths, evenly spread in order of size, the ends among them."""
    from matplotlib import colormaps

    order = sorted(range(len(run.lengths)), key=lambda m: run.lengths[m])
    if len(order) > SHOWN:
        order = [order[round(k * (len(order) - 1) / (SHOWN - 1))] for k in range(SHOWN)]
    for k, m in enumerate(order):
        colour = colormaps["viridis_r"](0.15 + 0.8 * k / max(1, len(order) - 1))
        mean, low, high = (part[:, m] for part in found)
        ax.plot(x, mean, line, color=colour, label=f"{words}{run.lengths[m]:,}", **look)
        ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def seeds(run: Training) -> str:
    """How many, and what intervals over them are shown."""
    return f"{run.seeds} seeds, {LEVEL:.0%} intervals" if run.seeds > 1 else "one seed"


def _ends(values: Float[Tensor, "R S M"]) -> tuple[float, float]:
    """Of the axis: 0 means no gap above the noise, which a logarithm cannot show."""
    means = values.mean(1)
    positive = means[means > 0]
    return (float(positive.min()) / 2, 1.5 * float(positive.max())) if positive.numel() else (1e-12, 1.0)


ATTENTIONS: dict[Attention, tuple[str, str]] = {
    "softmax": (BLUE, "o"),
    "opposite": (PURPLE, "^"),
    "linear": (ORANGE, "s"),
}
TUNED = "tuned without training (exact)"


def risk_figure(tasks: Sequence[Comparison]) -> Figure:
    """A panel a task: mean over seeds with t intervals; as lines the exact risk of weights tuned to that length without
    training, dashed that of the infinite-prompt solution, dotted ridge regression or another floor."""
    drawn, found = panels(len(tasks), width=1.0 + 4.6 * len(tasks), height=4.6)
    for ax, task in zip(found, tasks, strict=True):
        _panel(ax, task)
    _legend_below(drawn, found)
    run = tasks[0].any_run
    found[0].set_ylabel(f"risk after {run.steps[-1]:,} steps, {seeds(run)}")
    return drawn


def price_figure(task: Comparison) -> Figure:
    """Risks, and beside them how many times that of linear attention they are: trained, tuned, and for infinitely long prompts."""
    drawn, (left, right) = panels(2, width=10.4, height=5.4)
    _panel(left, task)
    left.set_ylabel("risk")
    L, constants = torch.tensor(task.lengths, dtype=torch.float64), task.constants()
    for name, (colour, marker) in ATTENTIONS.items():
        if name not in task.runs or name == "linear":
            continue
        trained = over_seeds((task.runs[name].risk[-1] / task.runs["linear"].risk[-1]).T)
        within(right, L, *trained, marker, colour, f"{MODELS[name]}, trained", markersize=5)
        exact, label = task.predicted[name] / task.predicted["linear"], f"{MODELS[name]}, {TUNED}"
        right.plot(L, exact, color=colour, linewidth=1, label=label)
        end = constants[name] / constants["linear"]
        right.axhline(end, color=colour, linestyle=":", label=f"{MODELS[name]}, L → ∞")
    finish(right, "prompt length L", "risk over that of linear attention", "The price of one head", log="x")
    legend = right.get_legend()
    if legend is not None:
        legend.remove()
    _legend_below(drawn, [left, right])
    return drawn


def _legend_below(drawn: Figure, found: Sequence[Axes]) -> None:
    """One for all axes."""
    pairs = (zip(*ax.get_legend_handles_labels()[::-1], strict=True) for ax in found)
    labels, handles = zip(*dict(chain(*pairs)).items(), strict=True)
    drawn.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=3)


@figure.register(Comparison)
def _(task: Comparison) -> Figure:
    return risk_figure([task])


def _panel(ax: Axes, task: Comparison) -> None:
    order = sorted(range(len(task.lengths)), key=lambda m: task.lengths[m])
    L = torch.tensor(task.lengths, dtype=torch.float64)[order]
    for name, (colour, marker) in ATTENTIONS.items():
        if name in task.runs:
            trained = (values[order] for values in task.ending(name))
            within(ax, L, *trained, marker, colour, f"{MODELS[name]}, trained", markersize=5)
        if name in task.predicted:
            label = f"{MODELS[name]}, {TUNED}"
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
