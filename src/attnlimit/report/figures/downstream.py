"""What fewer keys do to a model: its task against the keys, by thirds of its texts, and with its layers and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.errors import InputError
from attnlimit.models.judge.downstream import DownstreamCurve
from attnlimit.models.judge.intervals import Uncertain
from attnlimit.models.judge.splits import SplitComparison
from attnlimit.report.figures.style import (
    BLACK,
    COLOURS,
    axes,
    bars,
    dots,
    finish,
    panels,
    shades,
    small_print,
)

MARKERS = "osD^vP"
SIDE = 1.01
"""Curves stand a little beside each other, so that intervals can be told apart."""
TASK = "Task (dotted: all keys)"


@figure.register(DownstreamCurve)
def curve_figure(result: DownstreamCurve) -> Figure:
    """Metric with intervals against distinct keys per query and head, and the full model as a line."""
    return _curves({"sampled keys": result})


@figure.register(SplitComparison)
def comparison_figure(result: SplitComparison) -> Figure:
    """The same for uniform keys and their split."""
    return _curves({"the same in every head": result.uniform, "optimal split": result.split})


def _curves(curves: Mapping[str, DownstreamCurve]) -> Figure:
    first = next(iter(curves.values()))
    drawn, ax = axes()
    for k, (name, curve) in enumerate(curves.items()):
        _line(ax, curve.keys, curve.values, name, k)
    ax.axhline(first.full.value, color=BLACK, linestyle=":", linewidth=1, label="all keys")
    _keys(ax, first)
    return drawn


def thirds_figure(*curves: DownstreamCurve, note: str = "") -> Figure:
    """A panel for each curve: the examples of low, middle and high horizon."""
    if any(curve.third is None for curve in curves):
        raise InputError("Thirds are drawn of curves that know horizons: curve.by_horizon(…).")
    drawn, axes = panels(len(curves), 0.6 + 4.9 * len(curves), 4.4)
    for ax, curve in zip(axes, curves, strict=True):
        for k, (name, values) in enumerate(curve.thirds.items()):
            _line(ax, curve.keys, values, f"{name} horizon", k)
            ax.axhline(curve.full_thirds[name], color=COLOURS[k], linestyle=":", linewidth=1)
        _keys(ax, curve, ", dotted: all keys")
    small_print(drawn, note)
    return drawn


def changes_figure(
    layers: Mapping[int, np.ndarray],
    changes: Mapping[str, DownstreamCurve],
    tasks: Mapping[str, DownstreamCurve],
    note: str = "",
) -> Figure:
    """`layers`: keys → relative errors (seeds, layers) behind each layer of the first model; `changes` and `tasks`:
    curves by the words that name them, against the share of keys, since models differ in their length."""
    drawn, (first, second, third) = panels(3, 13.0, 4.4)
    _layers(first, layers, next(iter(changes)))
    for ax, curves in ((second, changes), (third, tasks)):
        for k, (name, curve) in enumerate(curves.items()):
            _line(ax, [100 * share for share in curve.share], curve.values, name, k)
            if ax is third:
                ax.axhline(curve.full.value, color=COLOURS[k], linestyle=":", linewidth=1)
        _shares(ax)
        ax.legend(frameon=False, fontsize=8)
    second.set(ylabel="relative change, or KL in nats, 95 % intervals", yscale="log")
    second.set_title("Outputs", fontsize=10, loc="left")
    third.set(ylabel="task (share), 95 % intervals", ylim=(0, 1.4), yticks=np.linspace(0, 1, 6))
    third.set_title(TASK, fontsize=10, loc="left")
    small_print(drawn, note)
    return drawn


def _layers(ax: Axes, layers: Mapping[int, np.ndarray], name: str) -> None:
    for (keys, errors), shade in zip(sorted(layers.items()), shades(len(layers)), strict=True):
        middle = np.sqrt(np.square(errors).mean(0))
        span = np.stack([middle - errors.min(0), errors.max(0) - middle])
        dots(ax, range(1, len(middle) + 1), middle, span, "o-", shade, f"{keys} keys")
    y, names = (
        "relative rms error of its hidden states",
        {"title": "bars: range over seeds", "title_fontsize": 7},
    )
    finish(ax, "layer", y, f"Layers: {name}", legend=names, ylim=(0, None))


def _line(ax: Axes, x: Sequence[float], values: Sequence[Uncertain], label: str, k: int) -> None:
    places = np.argsort(x)
    centre = np.array([one.value for one in values])[places]
    reach = bars(centre, [(values[place].low, values[place].high) for place in places])
    fmt, colour = f"{MARKERS[k % len(MARKERS)]}-", COLOURS[k % len(COLOURS)]
    dots(ax, np.array(x)[places] * SIDE**k, centre, reach, fmt, colour, label)


def _keys(ax: Axes, curve: DownstreamCurve, more: str = "") -> None:
    how = f"{len(curve.seeds)} seeds × {curve.per_example.shape[2]} examples, {curve.level:.0%} intervals"
    ax.set(xscale="log", xlabel="distinct keys per query and head", ylabel=curve.full.name)
    ax.set_xticks(sorted(curve.keys), [f"{keys:.3g}" for keys in sorted(curve.keys)], minor=False)
    ax.minorticks_off()
    if curve.full.logarithmic:
        ax.set_yscale("log")
    ax.legend(frameon=False, fontsize=9, title=how + more, title_fontsize=8)


def _shares(ax: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set(xscale="log", xlabel="keys attended to, % of all")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.axvline(100, color=BLACK, linewidth=0.5)
