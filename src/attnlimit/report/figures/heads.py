"""Figures of a model's heads: how many keys each needs, its curve, and slope against horizon."""

from __future__ import annotations

from math import nan
from typing import Any

import torch
from torch import Tensor

from attnlimit.drawing import Axes, Figure
from attnlimit.drawing import figure as figure_of
from attnlimit.models.analyse.heads import HeadReport
from attnlimit.models.analyse.run import Run
from attnlimit.models.budget.budgets import Budgets
from attnlimit.report.figures.style import (
    BLUE,
    COLOURS,
    RED,
    axes,
    exponent_lines,
    finish,
    plain_ticks,
    shades,
)

ALL_KEYS: dict[str, Any] = {"facecolor": "0.92", "edgecolor": RED, "hatch": "////"}
"""A square whose head needs all keys that it sees."""


@figure_of.register(Run)
def heat_map(run: Run) -> Figure:
    """Keys that a query reads, by layer and head, the cheaper way of each; hatched where it needs all that it sees."""
    facts, keys = run.facts, run.keys_needed()
    visible = max(one.visible_keys for one in run.heads)
    needs = [one.needed(facts.rel_error) for one in run.heads]
    low = max(1.0, float(keys.nan_to_num(visible).min()) / 2)
    title = f"Keys a query reads for {100 * facts.rel_error:g} % error, {facts.model}"
    drawn, ax = _map(run, keys, (low, max(visible, 2.0)), 0.36, title, "keys, kept and drawn")
    from matplotlib.patches import Patch, Rectangle  # it is there: something was drawn

    for one, need in zip(run.heads, needs, strict=True):
        if need.all:
            ax.add_patch(Rectangle((one.head - 0.5, one.layer - 0.5), 1, 1, linewidth=0, **ALL_KEYS))
        _write(ax, one, str(need), need.keys**2 < low * visible and not need.all)
    mean = " in the mean" if facts.causal else ""
    label = f"all it sees (up to {visible:.0f}{mean}); + keeps some keys and draws the others"
    patch = Patch(label=label, **ALL_KEYS)
    drawn.legend(handles=[patch], loc="outside lower center", frameon=False, fontsize=8)
    return drawn


def answer_map(run: Run, budgets: Budgets) -> Figure:
    """The share of its keys that each head reads under budgets for the model's answer."""
    share = torch.tensor([(one.keys or 0.0) / max(one.visible_keys or 0.0, 1.0) for one in budgets.entries])
    grid = 100 * share.view(run.shape)
    low = max(float(grid.min()), 0.5)
    error = "" if budgets.predicted is None else f"{budgets.predicted.value:.2g} {budgets.predicted.unit}"
    title = f"{run.facts.model}: {100 * (budgets.share or 0):.3g} % of all keys,\nerror of the answer {error}"
    words = "% of the keys it sees"
    drawn, ax = _map(run, grid, (low, 100.0), 0.26, title, words)
    for one, value in zip(run.heads, grid.flatten().tolist(), strict=True):
        _write(ax, one, f"{value:.2g}", value**2 < low * 100)
    return drawn


def _map(
    run: Run, values: Tensor, ends: tuple[float, float], row: float, title: str, words: str
) -> tuple[Figure, Axes]:
    """A square a head, rows `row` inches high, coloured by the logarithm of its value."""
    layers, heads = run.shape
    drawn, ax = axes(max(5.0, 1.8 + 0.42 * heads), max(2.8, 1.4 + row * layers))
    from matplotlib.colors import LogNorm

    ax.grid(False)
    image = ax.imshow(values.numpy(), cmap="cividis", norm=LogNorm(*ends), aspect="auto")
    ax.set(xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers), title=title)
    ax.title.set_fontsize(10)
    plain_ticks(drawn.colorbar(image, ax=ax, label=words).ax.yaxis, (1.0, 2.0, 5.0))
    return drawn, ax


def _write(ax: Axes, one: HeadReport, text: str, dark: bool) -> None:
    colour = "white" if dark else "black"
    ax.text(one.head, one.layer, text, color=colour, ha="center", va="center", fontsize=7)


def curves(run: Run, policy: str = "sampled") -> Figure:
    """The exact curve of every head, coloured by layer."""
    drawn, ax = axes()
    allowed = floor = run.facts.rel_error
    layers = run.shape[0]
    few = layers <= len(COLOURS)
    colours = COLOURS if few else shades(layers)
    for one in run.heads:
        (way,) = one.chosen(policy)
        points = zip(way.curve.n, way.curve.error.tolist(), strict=True)
        known = [(n, error) for n, error in points if error > 0]
        if not known:
            continue
        label = f"layer {one.layer}" if few and one.head == 0 else None
        ax.plot(*zip(*known, strict=True), color=colours[one.layer], alpha=0.55, linewidth=1, label=label)
        floor = min(floor, known[-1][1])
    ax.axhline(allowed, color="black", linestyle="--", linewidth=1)
    ax.annotate(f"{100 * allowed:g} %", (1, allowed), (0, 3), textcoords="offset points", fontsize=8)
    if not few:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, Normalize

        scale = ScalarMappable(Normalize(-0.5, layers - 0.5), ListedColormap(colours))
        drawn.colorbar(scale, ax=ax, label="layer")
    ends = (min(max(floor, 1e-3), allowed) / 1.5, None)
    finish(ax, "keys drawn n", "relative rms error of the head's output", log="xy", ylim=ends)
    return drawn


def slopes(run: Run) -> Figure:
    """Local exponent over a stated range of n against the horizon, with the published and the sharp lines."""
    drawn, ax = axes()
    heads = [one for one in run.heads if one.horizon > 0]  # 0: pruned, with no place on a logarithmic axis
    known = [(one.horizon, one.local_exponent) for one in heads if one.local_exponent is not None]
    H, exponent = zip(*known, strict=True) if known else ((0.5, 2.0), (nan, nan))
    low, high = run.heads[0].exponent_range
    label = f"heads, fitted from n = {low} to {high}"
    ax.plot(H, exponent, "o", color=BLUE, alpha=0.7, markersize=4, label=label)
    ends = torch.tensor([0.8 * min(H), 1.2 * max(H)]).log10()
    fine = torch.logspace(float(ends[0]), float(ends[1]), 200).tolist()
    exponent_lines(ax, fine, rms="sharp, Gaussian tokens, n → ∞", paper="published 1/(2(1+H²))")
    worth = "exponent in n/(1 − n/R) for n of R keys" if run.facts.population == "context" else None
    names = {"title": worth, "title_fontsize": 8}
    top = 1.1 * max(0.5, *exponent)
    finish(ax, "horizon H", "exponent of the error", log="x", legend=names, ylim=(0, top))
    plain_ticks(ax.xaxis, (1.0, 2.0, 5.0))
    return drawn
