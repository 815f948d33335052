"""A model with n random keys in every head: layers, outputs and task against n; the same for thirds of the texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.models.judge.downstream import DownstreamCurve
from attnlimit.models.judge.intervals import Estimate
from attnlimit.report.figures.style import BLACK, COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP"
SIDE = 0.012
"""Curves stand a little beside each other, so that intervals can be told apart."""


def changes_figure(
    layers: Mapping[int, Sequence[Sequence[float]]],
    changes: Mapping[str, DownstreamCurve],
    tasks: Mapping[str, DownstreamCurve],
    note: str = "",
) -> Figure:
    """`layers`: keys → relative errors behind each layer for each seed, of the first model; `changes` and `tasks`: curves by the words
    that name them."""
    figure, (first, second, third) = panels(3, 13.0, 4.4)
    _layers(first, layers, next(iter(changes)))
    for ax, curves in ((second, changes), (third, tasks)):
        for k, (name, curve) in enumerate(curves.items()):
            _line(ax, curve.share, curve.values, name, k)
            if ax is third:
                ax.axhline(curve.full.value, color=COLOURS[k], linestyle=":", linewidth=1)
    second.set(ylabel="relative change, or KL in nats, 95 % intervals", yscale="log")
    second.set_title("Outputs", fontsize=10, loc="left")
    third.set(ylabel="task (share), 95 % intervals", ylim=(0, 1.4), yticks=np.linspace(0, 1, 6))
    third.set_title("Task (dotted: all keys)", fontsize=10, loc="left")
    for ax in (second, third):
        _shares(ax)
        ax.legend(frameon=False, fontsize=8)
    _note(figure, note)
    return figure


def thirds_figure(change: DownstreamCurve, task: DownstreamCurve, note: str = "") -> Figure:
    """Both curves for the texts of low, middle and high horizon."""
    figure, axes = panels(2, 10.4, 4.4)
    for ax, curve in zip(axes, (change, task), strict=True):
        for k, (name, values) in enumerate(curve.thirds.items()):
            _line(ax, curve.share, values, f"{name} horizon", k)
            if curve is task:
                ax.axhline(curve.full_thirds[name], color=COLOURS[k], linestyle=":", linewidth=1)
        ax.set(ylabel=f"{curve.full.name}, 95 % intervals")
        _shares(ax)
        ax.legend(frameon=False, fontsize=8)
    axes[0].set_title("Outputs", fontsize=10, loc="left")
    axes[1].set_title("Task (dotted: all keys)", fontsize=10, loc="left")
    _note(figure, note)
    return figure


def _layers(ax: Axes, layers: Mapping[int, Sequence[Sequence[float]]], name: str) -> None:
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.0, 0.92, len(layers)))
    for (keys, seeds), shade in zip(sorted(layers.items()), shades, strict=True):
        errors = np.array(seeds)
        middle = np.sqrt(np.square(errors).mean(0))
        span: Any = [middle - errors.min(0), errors.max(0) - middle]
        ax.errorbar(
            range(1, len(middle) + 1),
            middle,
            yerr=span,
            fmt="o-",
            color=shade,
            markersize=4,
            capsize=3,
            label=f"{keys} keys",
        )
    ax.set(xlabel="layer", ylabel="relative rms error of its hidden states", ylim=(0, None))
    ax.set_title(f"Layers: {name}", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=8, title="bars: range over seeds", title_fontsize=7)


def _line(ax: Axes, share: Sequence[float], values: Sequence[Estimate], label: str, k: int) -> None:
    order = sorted(range(len(share)), key=lambda place: share[place])
    centre = np.array([values[place].value for place in order])
    low = np.array([values[place].low for place in order])
    high = np.array([values[place].high for place in order])
    # a percentile interval need not hold the value itself
    spread: Any = [np.maximum(centre - low, 0), np.maximum(high - centre, 0)]
    places = [100 * share[place] * (1 + SIDE * k) for place in order]
    ax.errorbar(
        places,
        centre,
        yerr=spread,
        fmt=f"{MARKERS[k % len(MARKERS)]}-",
        color=COLOURS[k % len(COLOURS)],
        markersize=4,
        capsize=3,
        label=label,
    )


def _shares(ax: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set(xscale="log", xlabel="keys attended to, % of all")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.axvline(100, color=BLACK, linewidth=0.5)


def _note(figure: Figure, note: str) -> None:
    from textwrap import wrap

    if note:
        figure.supxlabel("\n".join(wrap(note, 150)), fontsize=8, x=0.01, ha="left")
