"""Figures of a model's heads: how many keys each needs, its curve, and slope against horizon."""

from __future__ import annotations

from math import nan
from typing import Any

import torch

from attnlimit.drawing import Figure
from attnlimit.drawing import figure as figure_of
from attnlimit.models.analyse.run import Run
from attnlimit.models.budget.budgets import Budgets
from attnlimit.rates import exponents
from attnlimit.report.figures.style import BLUE, COLOURS, GREEN, ORANGE, RED, axes

ALL_KEYS: dict[str, Any] = {"facecolor": "0.92", "edgecolor": RED, "hatch": "////"}
"""A square whose head needs all keys that it sees."""


@figure_of.register(Run)
def heat_map(run: Run) -> Figure:
    """Keys that a query reads, by layer and head, the cheaper way of each; hatched where it needs all that it sees."""
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch, Rectangle

    facts, (layers, heads), keys = run.facts, run.shape, run.keys_needed()
    figure, ax = axes(max(5.0, 1.8 + 0.42 * heads), max(2.8, 1.4 + 0.36 * layers))
    ax.grid(False)
    visible = max(one.visible_keys for one in run.heads)
    low = max(1.0, float(keys.nan_to_num(visible).min()) / 2)
    image = ax.imshow(keys.numpy(), cmap="cividis", norm=LogNorm(low, max(visible, 2.0)), aspect="auto")
    for one in run.heads:
        need = one.needed(facts.rel_error)
        if need.all:
            ax.add_patch(Rectangle((one.head - 0.5, one.layer - 0.5), 1, 1, linewidth=0, **ALL_KEYS))
        colour = "white" if need.keys**2 < low * visible and not need.all else "black"
        ax.text(one.head, one.layer, str(need), color=colour, ha="center", va="center", fontsize=7)
    ax.set(
        xlabel="head",
        ylabel="layer",
        xticks=range(heads),
        yticks=range(layers),
        title=f"Keys a query reads for {100 * facts.rel_error:g} % error, {facts.model}",
    )
    ax.title.set_fontsize(10)
    figure.colorbar(image, ax=ax, label="keys, kept and drawn")
    label = f"all it sees (up to {visible:.0f}); + keeps some keys and draws the others"
    patch = Patch(label=label, **ALL_KEYS)
    figure.legend(handles=[patch], loc="outside lower center", frameon=False, fontsize=8)
    return figure


def answer_map(run: Run, budgets: Budgets) -> Figure:
    """The share of its keys that each head reads under budgets for the model's answer."""
    from matplotlib.colors import LogNorm

    layers, heads = run.shape
    share = torch.tensor([(one.keys or 0.0) / max(one.visible_keys or 0.0, 1.0) for one in budgets.entries])
    grid = 100 * share.view(layers, heads)
    figure, ax = axes(max(5.0, 1.8 + 0.42 * heads), max(2.8, 1.4 + 0.26 * layers))
    ax.grid(False)
    low = max(float(grid.min()), 0.5)
    image = ax.imshow(grid.numpy(), cmap="cividis", norm=LogNorm(low, 100.0), aspect="auto")
    for layer, row in enumerate(grid.tolist()):
        for head, value in enumerate(row):
            colour = "white" if value**2 < low * 100 else "black"
            ax.text(head, layer, f"{value:.2g}", color=colour, ha="center", va="center", fontsize=7)
    error = "" if budgets.predicted is None else f"{budgets.predicted.value:.2g} {budgets.predicted.unit}"
    title = f"{run.facts.model}: {100 * (budgets.share or 0):.3g} % of all keys,\nerror of the answer {error}"
    ax.set(xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers), title=title)
    ax.title.set_fontsize(10)
    figure.colorbar(image, ax=ax, label="keys that a query reads, % of those it sees", format="{x:g}")
    return figure


def curves(run: Run, policy: str = "sampled") -> Figure:
    """The exact curve of every head, coloured by layer."""
    figure, ax = axes()
    layers, allowed = run.shape[0], run.facts.rel_error
    floor = allowed
    for one in run.heads:
        (way,) = one.chosen(policy)
        known = [
            (n, error) for n, error in zip(way.curve.n, way.curve.error.tolist(), strict=True) if error > 0
        ]
        if not known:
            continue
        colour = COLOURS[one.layer % len(COLOURS)]
        label = f"layer {one.layer}" if one.head == 0 and one.layer < 2 * len(COLOURS) else None
        ax.plot(*zip(*known, strict=True), color=colour, alpha=0.55, linewidth=1, label=label)
        floor = min(floor, known[-1][1])
    ax.axhline(allowed, color="black", linestyle="--", linewidth=1)
    ax.set(
        xscale="log", yscale="log", xlabel="keys drawn n", ylabel="relative rms error of the head's output"
    )
    ax.set_ylim(min(max(floor, 1e-3), allowed) / 1.5, None)
    ax.legend(frameon=False, fontsize=8, ncols=1 + (layers > 6))
    return figure


def slopes(run: Run) -> Figure:
    """Local exponent over a stated range of n against the horizon, with the published and the sharp lines."""
    figure, ax = axes()
    known = [(one.horizon, one.local_exponent) for one in run.heads if one.local_exponent is not None]
    H, exponent = zip(*known, strict=True) if known else ((0.5, 2.0), (nan, nan))
    low, high = run.heads[0].exponent_range
    ax.plot(
        H,
        exponent,
        "o",
        color=BLUE,
        alpha=0.7,
        markersize=4,
        label=f"heads, fitted from n = {low} to {high}",
    )
    ends = torch.tensor([0.8 * min(H), 1.2 * max(H)]).log10()
    fine = torch.logspace(float(ends[0]), float(ends[1]), 200).tolist()
    lines = (("rms", "sharp, Gaussian tokens, n → ∞", ORANGE), ("paper", "published 1/(2(1+H²))", GREEN))
    for name, words, colour in lines:
        ax.plot(fine, [float(getattr(exponents(x), name)) for x in fine], color=colour, label=words)
    ax.set(xlabel="horizon H", ylabel="exponent of the error", xscale="log", ylim=(0, None))
    ax.xaxis.set_major_formatter("{x:g}")
    worth = "exponent in n/(1 − n/R) for n of R keys" if run.facts.population == "context" else None
    ax.legend(frameon=False, fontsize=8, title=worth, title_fontsize=8)
    return figure
