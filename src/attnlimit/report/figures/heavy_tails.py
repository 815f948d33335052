"""Keys with heavy tails: errors and their stable law, or outputs that do not settle, beside the keys' weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.exact.heavy_tails import HeavyTails
from attnlimit.report.figures.style import COLOURS, finish, panels


@figure.register(HeavyTails)
def heavy_tails_figure(*found: HeavyTails) -> Figure:
    """Errors where there is a limit (typical, nine of ten, rms, and the stable law's), outputs where there is none, and weights, one
    colour a query."""
    settled, lost = ([one for one in found if one.limit_exists is here] for here in (True, False))
    count = 1 + bool(settled) + bool(lost)
    drawn, axes = panels(count, width=4.6 * count)
    colours, places = dict(zip(map(id, found), COLOURS, strict=False)), iter(axes)

    def plot(ax: Axes, one: HeavyTails, values: Tensor | None, line: str, words: str, **look: Any) -> None:
        if values is not None:
            n, label = torch.tensor(one.n, dtype=torch.float64), f"{words}, α = {one.index:.3g}"
            ax.plot(n, values, line, color=colours[id(one)], label=label, **look)

    if settled:
        ax = next(places)
        for one in settled:
            plot(ax, one, one.typical, "o-", "typical (median)", markersize=4)
            plot(ax, one, one.rms, "--", "rms", linewidth=1)
            plot(ax, one, one.stable, ":", "stable law, n → ∞", linewidth=2)
        finish(ax, "tokens n", "error along the heavy keys", "Errors", log="xy")
    if lost:
        ax = next(places)
        for one in lost:
            plot(ax, one, one.output, "o-", "mean output", markersize=4)
            plot(ax, one, one.output_far, ":", "as n → ∞")
        finish(ax, "tokens n", "mean output along the heavy keys", "Where there is no limit", log="x")
    ax = next(places)
    for one in found:
        plot(ax, one, one.largest, "-", "largest")
        plot(ax, one, one.sum_squares, "--", "Σp²")
        for limit in (one.largest_limit, one.sum_squares_limit):
            if limit > 0:
                ax.axhline(limit, color=colours[id(one)], linewidth=0.8, linestyle=":")
    finish(ax, "tokens n", "weight", "Weights of the keys", log="x", ylim=(0, 1))
    return drawn
