"""The task's metric against the keys that each head attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnlimit.errors import InputError
from attnlimit.models.judge.downstream import DownstreamCurve
from attnlimit.models.judge.intervals import Estimate
from attnlimit.report.figures.style import BLACK, BLUE, COLOURS, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def downstream_figure(
    curves: DownstreamCurve | Mapping[str, DownstreamCurve], *, thirds: bool = False, title: str = ""
) -> Figure:
    """Metric with intervals against distinct keys per query and head, and the full model as a line.

    Several curves go by their names, e.g. {"uniform": …, "optimal split": …}. With `thirds` one curve is drawn for the
    examples of low, middle and high horizon.
    """
    named = {"": curves} if isinstance(curves, DownstreamCurve) else dict(curves)
    if not named:
        raise InputError("There is no curve to draw: give at least one.")
    first = next(iter(named.values()))
    figure, ax = axes()
    if thirds:
        if len(named) > 1 or first.third is None:
            raise InputError(
                "Thirds are drawn for one curve, made with horizons: downstream_curve(…, horizons=…)."
            )
        for place, (colour, (name, values)) in enumerate(zip(COLOURS, first.thirds.items(), strict=False)):
            _line(ax, _beside(first.keys, place - 1.0), values, f"{name} horizon", colour)
            ax.axhline(first.full_thirds[name], color=colour, linestyle=":", linewidth=1)
    else:
        for place, (colour, (name, curve)) in enumerate(zip(COLOURS, named.items(), strict=False)):
            keys = _beside(curve.keys, place - (len(named) - 1) / 2)
            _line(ax, keys, curve.values, name or "sampled keys", colour if name else BLUE)
        ax.axhline(first.full.value, color=BLACK, linestyle=":", linewidth=1, label="all keys")
    how = f"{len(first.seeds)} seeds × {first.per_example.shape[2]} examples, {first.level:.0%} intervals"
    ax.set(xscale="log", xlabel="distinct keys per query and head", ylabel=first.full.name, title=title)
    ax.set_xticks(sorted(first.keys), [f"{keys:.3g}" for keys in sorted(first.keys)], minor=False)
    ax.minorticks_off()
    if first.full.logarithmic:
        ax.set_yscale("log")
    ax.legend(
        frameon=False, fontsize=9, title=how + (", dotted: all keys" if thirds else ""), title_fontsize=8
    )
    return figure


def _beside(keys: Sequence[float], steps: float) -> list[float]:
    """The keys, moved a little so that intervals of several curves stand side by side."""
    step = (max(keys) / min(keys)) ** 0.008
    return [one * step**steps for one in keys]


def _line(ax: Axes, keys: Sequence[float], values: Sequence[Estimate], label: str, colour: str) -> None:
    order = sorted(range(len(keys)), key=lambda place: keys[place])
    centre = [values[place].value for place in order]
    # a percentile interval need not hold the value itself
    spread = [
        [max(0.0, values[place].value - values[place].low) for place in order],
        [max(0.0, values[place].high - values[place].value) for place in order],
    ]
    ax.errorbar(
        [keys[place] for place in order],
        centre,
        yerr=spread,
        fmt="o-",
        color=colour,
        markersize=4,
        capsize=3,
        label=label,
    )
