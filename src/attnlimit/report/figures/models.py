"""Studies of models: fitted slopes of heads against the horizon and some of their curves; the token cloud of a layer by t-SNE with
subsamples in it, and how well they cover it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnlimit.designs import Kept
from attnlimit.drawing import Axes, Figure, figure
from attnlimit.errors import InputError
from attnlimit.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    dots,
    exponent_lines,
    finish,
    fitted_dots,
    panels,
    plain_ticks,
    shades,
    small_print,
)
from attnlimit.studies.kinds.model_convergence import HeadSlope
from attnlimit.studies.kinds.token_cloud import Covered

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
    _slopes(left, known, colours, other, title)
    _curves(right, known, colours)
    small_print(figure, note)
    return figure


def _slopes(
    ax: Axes, heads: Sequence[HeadSlope], colours: dict[int, Any], other: Sequence[HeadSlope], title: str
) -> None:
    most = min(WIDEST, 1.1 * max(one.horizon for one in heads))
    for layer, colour in colours.items():
        some = [one for one in heads if one.layer == layer]
        x, label = [min(one.horizon, most) for one in some], f"layer {layer}" if len(colours) <= 12 else None
        fitted_dots(ax, some, x, "o", colour, label, elinewidth=0.8, capsize=0)
    if other:
        found = [(min(one.horizon, most), one.exponent) for one in other if one.exponent is not None]
        name = str(replace(other[0].sampling, kept=Kept()))
        ax.plot(*zip(*found, strict=True), "x", color="0.45", markersize=4, label=name, zorder=1)
    lines = {"rms": "sharp (rms), n → ∞", "mean": "sharp (mean), n → ∞"}
    exponent_lines(ax, np.linspace(0.02, most, 200), paper="published 1/(2(1+H²)), n → ∞", **lines)
    beyond = sum(one.horizon > most for one in heads)
    more = f" ({beyond} beyond, at the edge)" if beyond else ""
    top = max(one.exponent for one in (*heads, *other) if one.exponent is not None)
    y, where = "fitted exponent of n, 95 % intervals", {"fontsize": 7, "ncols": 2, "loc": "upper right"}
    finish(ax, f"horizon H{more}", y, title, legend=where, ylim=(0, 1.45 * top))


def _curves(ax: Axes, heads: Sequence[HeadSlope], colours: dict[int, Any]) -> None:
    """Monte Carlo with its intervals, and the closed form as a line."""
    from matplotlib.ticker import NullLocator

    sizes = heads[0].measured.n
    order = sorted(heads, key=lambda one: one.horizon)
    count = min(SHOWN, len(order))
    places = [round(k * (len(order) - 1) / max(1, count - 1)) for k in range(count)]
    for place, marker in zip(places, "osD^v", strict=False):
        one = order[place]
        words = f"layer {one.layer}, head {one.head}: H = {one.horizon:.2g}"
        colour = colours[one.layer]
        dots(ax, sizes, one.measured.error, one.half_width, marker, colour, words, capsize=2)
        ax.plot(sizes, one.closed.error, "-", color=colour, linewidth=1)
    y, title = "rms error / rms of the head's output", "Heads from low to high horizon"
    names = {"fontsize": 7, "title": "points: Monte Carlo, lines: closed form", "title_fontsize": 7}
    finish(ax, "keys n", y, title, log="xy", legend=names)
    ax.set_xticks(list(sizes), [str(size) for size in sizes], fontsize=8)
    ax.xaxis.set_minor_locator(NullLocator())
    plain_ticks(ax.yaxis, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))


PICTURES = 3


@figure.register(Covered)
def token_cloud_figure(cloud: Covered) -> Figure:
    """The picture with subsamples of three sizes, and both measures of coverage."""
    drawn, axes = panels(PICTURES + 1, 15.0, 4.2)
    picture, order = cloud.picture.numpy(), np.array(cloud.order)
    # the first, a middle and the last
    sizes = sorted({cloud.n[round(k * (len(cloud.n) - 1) / (PICTURES - 1))] for k in range(PICTURES)})
    for ax, n in zip(axes, sizes, strict=False):
        ax.plot(*picture.T, ".", color="0.8", markersize=3)
        ax.plot(*picture[order[:n]].T, ".", color=BLUE, markersize=5)
        ax.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
        ax.set_title(f"{n} of {cloud.points} tokens", fontsize=10, loc="left")
    for ax in axes[len(sizes) : PICTURES]:
        ax.set_axis_off()
    _coverage(axes[-1], cloud)
    drawn.suptitle(f"Tokens behind layer {cloud.layer}. {cloud.weights}", fontsize=10, x=0.01, ha="left")
    return drawn


def _coverage(ax: Axes, cloud: Covered) -> None:
    n = np.array(cloud.n, dtype=float)
    both = (
        (cloud.energy, "squared energy distance", ORANGE, "o"),
        (cloud.nearest, "distance to the nearest", GREEN, "s"),
    )
    for mean, words, colour, marker in both:
        half = 1.96 * np.array(mean.standard_error)
        dots(ax, n, mean.value, half, marker, colour, words)
    fine = np.geomspace(n[0], n[-1], 100)
    predicted = (cloud.points - fine) / (fine * (cloud.points - 1))
    ax.plot(fine, predicted, "-", color=BLACK, linewidth=1, label="predicted: (N − n)/(n(N − 1))")
    x, y = "tokens n of the subsample", "over the mean distance of two tokens"
    finish(ax, x, y, f"Coverage, {len(cloud.squares)} draws, 95 % intervals", log="xy")
