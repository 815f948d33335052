"""Keys with heavy tails: errors and their stable law, or outputs that do not settle, beside the keys' weights."""

from __future__ import annotations

import torch

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.exact.heavy_tails import HeavyTails
from attnlimit.report.figures.style import COLOURS, finish, panels


@figure.register(HeavyTails)
def heavy_tails_figure(*found: HeavyTails) -> Figure:
    """Errors where there is a limit (typical, nine of ten, rms, and the stable law's), outputs where there is none, and weights, one
    colour a query."""
    settled, lost = ([one for one in found if one.limit_exists is here] for here in (True, False))
    drawn, axes = panels(1 + bool(settled) + bool(lost), width=4.6 * (1 + bool(settled) + bool(lost)))
    colours = dict(zip(map(id, found), COLOURS, strict=False))
    places = iter(axes)
    if settled:
        ax = next(places)
        for one in settled:
            _errors(ax, one, colours[id(one)])
        finish(ax, "tokens n", "error along the heavy keys", "Errors", log="xy")
    if lost:
        ax = next(places)
        for one in lost:
            n = torch.tensor(one.n, dtype=torch.float64)
            for values, line, words in ((one.output, "o-", "mean output"), (one.output_far, ":", "as n → ∞")):
                if values is not None:
                    ax.plot(
                        n,
                        values,
                        line,
                        color=colours[id(one)],
                        markersize=4,
                        label=f"{words}, α = {one.index:.3g}",
                    )
        finish(ax, "tokens n", "mean output along the heavy keys", "Where there is no limit", log="x")
    ax = next(places)
    for one in found:
        _weights(ax, one, colours[id(one)])
    finish(ax, "tokens n", "weight", "Weights of the keys", log="x")
    ax.set_ylim(0, 1)
    return drawn


def _errors(ax: Axes, one: HeavyTails, colour: str) -> None:
    n = torch.tensor(one.n, dtype=torch.float64)
    name = f"α = {one.index:.3g}"
    if one.typical is not None:
        ax.plot(n, one.typical, "o-", color=colour, markersize=4, label=f"typical (median), {name}")
    if one.rms is not None:
        ax.plot(n, one.rms, "--", color=colour, linewidth=1, label=f"rms, {name}")
    if one.stable is not None:
        ax.plot(n, one.stable, ":", color=colour, linewidth=2, label=f"stable law, n → ∞, {name}")


def _weights(ax: Axes, one: HeavyTails, colour: str) -> None:
    n = torch.tensor(one.n, dtype=torch.float64)
    name = f"α = {one.index:.3g}"
    both = (
        (one.largest, one.largest_limit, "-", "largest"),
        (one.sum_squares, one.sum_squares_limit, "--", "Σp²"),
    )
    for values, limit, line, words in both:
        if values is not None:
            ax.plot(n, values, line, color=colour, label=f"{words}, {name}")
        if limit > 0:
            ax.axhline(limit, color=colour, linewidth=0.8, linestyle=":")
