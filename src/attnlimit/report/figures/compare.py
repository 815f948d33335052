"""Methods beside each other: what they change of the model's answer against the share of keys that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.drawing import figure
from attnlimit.models.judge.compare import Comparison
from attnlimit.models.judge.methods import METHODS, OURS
from attnlimit.models.see.gradient import CHANGE
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, axes, bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = dict(
    zip(METHODS, zip((BLUE, SKY, GREEN, ORANGE, PURPLE, RED, "0.45"), "osD^vPX", strict=True), strict=True)
)


@figure.register(Comparison)
def comparison_figure(result: Comparison) -> Figure:
    """A line a method, ours strong and its prediction dashed; names stand at the right, in the order of the lines."""
    drawn, ax = axes(8.0, 5.0)
    for method in reversed(result.methods):
        _line(ax, result, method)
    lines = {one.get_label(): one for one in ax.get_lines() if not str(one.get_label()).startswith("_")}
    handles = [lines[name] for name in _by_height(result)] + [
        lines[name] for name in lines if "predicted" in str(name)
    ]
    drawn.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=10, labelspacing=0.9)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="keys read, % of all",
        ylabel=CHANGE if result.unit == CHANGE else f"KL(full ‖ sampled), {result.unit}",
        title=f"{result.model}: {result.windows} × {result.tokens:,} tokens not analysed, {result.level:.0%} intervals",
    )
    ax.title.set_fontsize(11)
    shares = sorted({one.asked for one in result.points})
    ax.set_xticks([100 * share for share in shares], [f"{100 * share:.3g}" for share in shares])
    ax.xaxis.minorticks_off()
    return drawn


def _line(ax: Axes, result: Comparison, method: str) -> None:
    points, (colour, marker) = result.of(method), STYLES.get(method, (BLACK, "o"))
    ours = method in OURS
    share = 100 * np.array([one.read for one in points])
    found = [one.measured(result.level) for one in points]
    centre = np.array([one.value for one in found])
    strong: dict[str, Any] = {
        "linewidth": 2.6 if ours else 1.3,
        "markersize": 7 if ours else 5,
        "zorder": 3 + ours,
    }
    ax.plot(share, centre, marker=marker, color=colour, label=_name(method), **strong)
    spans = bars(centre, [(one.low, one.high) for one in found])
    ax.errorbar(share, centre, yerr=spans, fmt="none", ecolor=colour, capsize=3, elinewidth=1)
    known = [(100 * one.read, one.predicted.value) for one in points if ours and one.predicted is not None]
    if known:
        label = f"{_name(method)}, predicted"
        ax.plot(
            *zip(*known, strict=True),
            linestyle=(0, (4, 2)),
            color=colour,
            linewidth=1.4,
            label=label,
            zorder=5,
        )


def _name(method: str) -> str:
    return f"ours, {method}" if method in OURS else method


def _by_height(result: Comparison) -> list[str]:
    """Names from the highest line to the lowest, at the most keys."""
    return [
        _name(method)
        for method in sorted(result.methods, key=lambda one: result.of(one)[-1].value, reverse=True)
    ]
