"""Figures of a model's heads: how many keys each needs, its curve, and slope against horizon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attnlimit.numerics.counts import short_count
from attnlimit.rates import exponents
from attnlimit.report.figures.style import BLUE, COLOURS, GREEN, ORANGE, RED, axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heat_map(run: Any) -> Figure:
    """n(ε) for 90 % of the queries, by layer and head; hatched where more keys are needed than there are."""
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch

    need = run.grid("n_p90")
    layers, heads = need.shape
    figure, ax = axes(max(5.0, 1.8 + 0.42 * heads), max(2.8, 1.4 + 0.36 * layers))
    ax.grid(False)
    visible = float(run.grid("visible_keys").nan_to_num(0).max())
    low = float(need.nan_to_num(visible).min()) / 2
    image = ax.imshow(
        need.numpy(), cmap="cividis", norm=LogNorm(max(1.0, low), max(visible, 2.0)), aspect="auto"
    )
    for layer in range(layers):
        for head in range(heads):
            value = need[layer, head]
            if torch.isfinite(value):
                dark = float(value) ** 2 < max(1.0, low) * visible
                ax.text(
                    head,
                    layer,
                    short_count(float(value)),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
            else:
                ax.add_patch(_square(head, layer))
    percent = 100 * float(run.facts["rel_error"])
    ax.set(
        xlabel="head",
        ylabel="layer",
        xticks=range(heads),
        yticks=range(layers),
        title=f"Keys needed for {percent:g} % error (90 % of queries), {run.facts['model']}",
    )
    ax.title.set_fontsize(10)
    figure.colorbar(image, ax=ax, label="keys n(ε)")
    label = f"more than the {visible:.0f} keys there are"
    figure.legend(
        handles=[Patch(facecolor="0.92", edgecolor=RED, hatch="////", label=label)],
        loc="outside lower center",
        frameon=False,
        fontsize=8,
    )
    return figure


def _square(head: int, layer: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (head - 0.5, layer - 0.5), 1, 1, facecolor="0.92", edgecolor=RED, hatch="////", linewidth=0
    )


def curves(run: Any, policy: str = "sampled") -> Figure:
    """The exact curve of every head, coloured by layer."""
    figure, ax = axes()
    layers = run.shape[0]
    for one in run.heads:
        colour = COLOURS[one.layer % len(COLOURS)]
        label = f"layer {one.layer}" if one.head == 0 and one.layer < 2 * len(COLOURS) else None
        known = [(n, error) for n, error in zip(one.n, one.curves[policy]["rms"], strict=True) if error > 0]
        ax.plot(*zip(*known, strict=True), color=colour, alpha=0.55, linewidth=1, label=label)
    ax.axhline(float(run.facts["rel_error"]), color="black", linestyle="--", linewidth=1)
    floor = min(error for one in run.heads for error in one.curves[policy]["rms"] if error > 0)
    ax.set(
        xscale="log", yscale="log", xlabel="sampled keys n", ylabel="relative rms error of the head's output"
    )
    ax.set_ylim(min(max(floor, 1e-3), float(run.facts["rel_error"])) / 1.5, None)
    ax.legend(frameon=False, fontsize=8, ncols=1 + (layers > 6))
    return figure


def slopes(run: Any) -> Figure:
    """Local exponent over a stated range of n against the horizon, with the published and the sharp lines."""
    figure, ax = axes()
    H = [one.horizon for one in run.heads]
    low, high = run.heads[0].exponent_range
    ax.plot(
        H,
        [one.local_exponent for one in run.heads],
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
    worth = "exponent in n/(1 − n/R) for n of R keys" if run.facts["population"] == "context" else None
    ax.legend(frameon=False, fontsize=8, title=worth, title_fontsize=8)
    return figure
