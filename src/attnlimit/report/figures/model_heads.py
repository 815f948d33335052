"""Heads of a model with n of their keys: fitted slopes against the horizon, and some of the curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnlimit.designs import Kept
from attnlimit.drawing import Axes, Figure
from attnlimit.errors import InputError
from attnlimit.report.figures.style import bars, exponent_lines, panels, shades, small_print
from attnlimit.studies.kinds.model_convergence import HeadSlope

SHOWN = 5
"""Curves in the right panel, from the lowest to the highest horizon."""
WIDEST = 3.0
"""Horizon at which the axis ends; heads beyond it are drawn at its end."""


def model_heads_figure(
    heads: Sequence[HeadSlope], title: str, note: str = "", other: Sequence[HeadSlope] = ()
) -> Figure:
    """`heads` of one population and way of drawing; `other` heads, drawn otherwise, are crosses beside the slopes."""
    known = [one for one in heads if one.exponent is not None]
    if not known:
        raise InputError("No head has a fitted slope: run at least five batches of replicates.")
    figure, (left, right) = panels(2, 11.0, 4.8)
    layers = sorted({one.layer for one in known})
    colours = dict(zip(layers, shades(len(layers)), strict=True))
    _slopes(left, known, colours, other)
    _curves(right, known, colours)
    left.set_title(title, fontsize=10, loc="left")
    right.set_title("Heads from low to high horizon", fontsize=10, loc="left")
    small_print(figure, note)
    return figure


def _slopes(
    ax: Axes, heads: Sequence[HeadSlope], colours: dict[int, Any], other: Sequence[HeadSlope]
) -> None:
    most = min(WIDEST, 1.1 * max(one.horizon for one in heads))
    for layer, colour in colours.items():
        some = [one for one in heads if one.layer == layer]
        middle = np.array([one.exponent for one in some])
        ax.errorbar(
            [min(one.horizon, most) for one in some],
            middle,
            yerr=bars(middle, [one.interval for one in some]),
            fmt="o",
            color=colour,
            markersize=4,
            elinewidth=0.8,
            label=f"layer {layer}" if len(colours) <= 12 else None,
        )
    if other:
        found = [(min(one.horizon, most), one.exponent) for one in other if one.exponent is not None]
        name = str(replace(other[0].sampling, kept=Kept()))
        ax.plot(*zip(*found, strict=True), "x", color="0.45", markersize=4, label=name, zorder=1)
    lines = {"rms": "sharp (rms), n → ∞", "mean": "sharp (mean), n → ∞"}
    exponent_lines(ax, np.linspace(0.02, most, 200), paper="published 1/(2(1+H²)), n → ∞", **lines)
    beyond = sum(one.horizon > most for one in heads)
    more = f" ({beyond} beyond, at the edge)" if beyond else ""
    top = max(one.exponent for one in (*heads, *other) if one.exponent is not None)
    ax.set(xlabel=f"horizon H{more}", ylabel="fitted exponent of n, 95 % intervals", ylim=(0, 1.45 * top))
    ax.legend(frameon=False, fontsize=7, ncols=2, loc="upper right")


def _curves(ax: Axes, heads: Sequence[HeadSlope], colours: dict[int, Any]) -> None:
    """Monte Carlo with its intervals, and the closed form as a line."""
    from matplotlib.ticker import LogLocator, NullLocator

    sizes = heads[0].measured.n

    order = sorted(heads, key=lambda one: one.horizon)
    count = min(SHOWN, len(order))
    places = [round(k * (len(order) - 1) / max(1, count - 1)) for k in range(count)]
    for place, marker in zip(places, "osD^v", strict=False):
        one = order[place]
        words = f"layer {one.layer}, head {one.head}: H = {one.horizon:.2g}"
        colour = colours[one.layer]
        ax.errorbar(
            sizes,
            one.measured.error,
            yerr=one.half_width,
            fmt=marker,
            color=colour,
            markersize=4,
            capsize=2,
            label=words,
        )
        ax.plot(sizes, one.closed.error, "-", color=colour, linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel="keys n", ylabel="rms error / rms of the head's output")
    ax.set_xticks(list(sizes), [str(size) for size in sizes], fontsize=8)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.legend(frameon=False, fontsize=7, title="points: Monte Carlo, lines: closed form", title_fontsize=7)
