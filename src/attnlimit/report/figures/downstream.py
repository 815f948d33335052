"""What fewer keys do to a model: its task against the keys, by thirds of its texts, and with its layers and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.errors import InputError
from attnlimit.models.judge.downstream import DownstreamCurve, SplitComparison
from attnlimit.models.judge.intervals import Uncertain
from attnlimit.report.figures.style import (
    BLACK,
    COLOURS,
    MARKERS,
    axes,
    finish,
    panels,
    plain_ticks,
    shades,
    small_print,
    within,
)

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
    x = "keys attended to, % of all"
    finish(second, x, "relative change, or KL in nats, 95 % intervals", "Outputs", log="xy")
    ends = {"ylim": (0, 1.4), "yticks": np.linspace(0, 1, 6)}
    finish(third, x, "task (share), 95 % intervals", TASK, log="x", **ends)
    for ax in (second, third):
        plain_ticks(ax.xaxis, (1.0, 2.0, 3.0, 5.0, 7.0))
        ax.axvline(100, color=BLACK, linewidth=0.5)
    small_print(drawn, note)
    return drawn


def _layers(ax: Axes, layers: Mapping[int, np.ndarray], name: str) -> None:
    for (keys, errors), shade in zip(sorted(layers.items()), shades(len(layers)), strict=True):
        middle, ends = np.sqrt(np.square(errors).mean(0)), (errors.min(0), errors.max(0))
        within(ax, range(1, len(middle) + 1), middle, *ends, "o-", shade, f"{keys} keys")
    names = {"title": "bars: range over seeds", "title_fontsize": 7}
    y = "relative rms error of its hidden states"
    finish(ax, "layer", y, f"Layers: {name}", legend=names, ylim=(0, None))


def _line(ax: Axes, x: Sequence[float], values: Sequence[Uncertain], label: str, k: int) -> None:
    places = np.argsort(x)
    ends = zip(*((values[at].value, values[at].low, values[at].high) for at in places), strict=True)
    fmt, colour = f"{MARKERS[k % len(MARKERS)]}-", COLOURS[k % len(COLOURS)]
    within(ax, np.array(x)[places] * SIDE**k, *ends, fmt, colour, label)


def _keys(ax: Axes, curve: DownstreamCurve, more: str = "") -> None:
    how = f"{len(curve.seeds)} seeds × {curve.per_example.shape[2]} examples, {curve.level:.0%} intervals"
    log, names = "x" + "y" * curve.full.logarithmic, {"fontsize": 9, "title": how + more, "title_fontsize": 8}
    finish(ax, "distinct keys per query and head", curve.full.name, log=log, legend=names)
    ax.set_xticks(sorted(curve.keys), [f"{keys:.3g}" for keys in sorted(curve.keys)], minor=False)
    ax.minorticks_off()
