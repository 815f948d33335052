"""Methods beside each other: what they change of the model's answer against the share of keys that they read."""

from __future__ import annotations

import numpy as np

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.models.judge.compare import Comparison
from attnlimit.models.judge.methods import METHODS, OURS
from attnlimit.models.see.gradient import CHANGE
from attnlimit.numerics.words import counted
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, axes, within

COLOURS = dict(zip(METHODS, (BLUE, SKY, BLUE, GREEN, ORANGE, PURPLE, RED, "0.45"), strict=True))
MARKERS = dict(zip(METHODS, "osoD^vPX", strict=True))
GAP = 0.06
"""Between names, of the height of the axes."""


@figure.register(Comparison)
def comparison_figure(result: Comparison) -> Figure:
    """A line a method, ours strong and its prediction dashed; names stand where the lines end."""
    drawn, ax = axes(8.0, 5.0)
    for method in reversed(result.methods):
        _line(ax, result, method)
    shares = sorted({one.asked for one in result.points})
    y = CHANGE if result.unit == CHANGE else f"KL(full ‖ sampled), {result.unit}"
    ax.set(xscale="log", yscale="log", xlabel="keys read, % of all", ylabel=y)
    of = f"{result.model}, {counted(result.windows, 'window')} of {result.tokens:,} tokens that were not analysed"
    ax.set_title(f"{of}\n{result.sure}; dashed: predicted", fontsize=10, loc="left")
    ax.set_xticks([100 * share for share in shares], [f"{100 * share:.3g}" for share in shares])
    ax.xaxis.minorticks_off()
    _names(ax, result)
    return drawn


def _line(ax: Axes, result: Comparison, method: str) -> None:
    points, ours = result.of(method), method in OURS
    colour = COLOURS.get(method, BLACK)
    share = 100 * np.array([one.read for one in points])
    found = [vars(one.measured(result.level)).values() for one in points]
    look = {"linewidth": 2.6 if ours else 1.3, "markersize": 7 if ours else 5, "elinewidth": 1.2}
    fmt = f"{MARKERS.get(method, 'o')}-"
    within(ax, share, *zip(*found, strict=True), fmt, colour, method, zorder=3 + ours, **look)
    known = [(100 * one.read, one.predicted.value) for one in points if ours and one.predicted is not None]
    if known:
        ax.plot(*zip(*known, strict=True), linestyle=(0, (4, 2)), color=colour, linewidth=1.5, zorder=5)


def _names(ax: Axes, result: Comparison) -> None:
    """At the right, each as near to its line's end as the others let it."""
    last = {method: result.of(method)[-1] for method in result.methods}
    by_height = sorted(result.methods, key=lambda method: last[method].value)
    ends = ax.transData.transform([(100 * last[m].read, last[m].value) for m in by_height])
    heights = ax.transAxes.inverted().transform(ends)[:, 1]
    room = GAP * np.arange(len(heights))
    places = np.maximum.accumulate(heights - room) + room
    places = np.minimum.accumulate((places - room)[::-1].clip(max=1 - room[-1]))[::-1] + room
    for method, place in zip(by_height, places, strict=True):
        ours, colour = method in OURS, COLOURS.get(method, BLACK)
        ax.annotate(
            f"ours, {method}" if ours else method,
            (100 * last[method].read, last[method].value),
            xytext=(1.04, place),
            textcoords="axes fraction",
            color=colour,
            fontsize=10,
            fontweight="bold" if ours else None,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.7},
        )
