"""The law of the error: its distribution function, quantiles against n, and errors of different keys."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.exact.error_law import ErrorLaw
from attnlimit.report.figures.style import (
    BESIDE,
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    dots,
    finish,
    panels,
    shades,
    within,
)
from attnlimit.studies.kinds.different_keys import DifferentErrors
from attnlimit.studies.kinds.error_law import LawQuantiles

POINTS = 61
JUMPS = 200
"""Outcomes up to which steps are drawn."""


@figure.register(ErrorLaw)
def error_law_figure(law: ErrorLaw) -> Figure:
    """P(error ≤ t), and P(|error| > t) on a logarithmic axis, beside the normal law of the same mean and deviation."""
    drawn, (left, right) = panels(2)
    normal = NormalDist(law.bias, max(law.std, 1e-300))
    t = np.linspace(*law.interval(0.998), POINTS) if law.std else np.linspace(-1.0, 1.0, POINTS)
    if law.outcomes is not None and len(law.outcomes[0]) <= JUMPS:
        t = np.unique(np.concatenate([t, law.outcomes[0].numpy()]))
    steps = "default" if law.outcomes is None else "steps-post"
    left.plot(t, law.cdf(t), color=BLUE, drawstyle=steps, label="exact")
    left.plot(t, [normal.cdf(one) for one in t], "--", color=ORANGE, label="normal, same mean and std")
    finish(left, "t (unit of the outputs)", "P(error ≤ t)", f"n = {law.n:,}")
    away = np.linspace(0.0, float(np.abs(t).max()), POINTS)
    right.plot(away, law.exceeds(away), color=BLUE, drawstyle=steps, label="exact")
    beyond = [1 - normal.cdf(one) + normal.cdf(-one) for one in away]
    right.plot(away, beyond, "--", color=ORANGE, label="normal")
    finish(right, "t (unit of the outputs)", "P(|error| > t)", log="y", ylim=(5e-4, 1.3))
    return drawn


def law_figure(found: Sequence[tuple[str, LawQuantiles]]) -> Figure:
    """Quantiles of the error over its deviation by the central limit theorem: lines exact, dots sampled, dashes normal."""
    drawn, axes = panels(len(found), 3.6 * len(found), 4.2)
    for ax, (title, one) in zip(axes, found, strict=True):
        z = [NormalDist().inv_cdf(level) for level in one.levels]
        size = (one.normal[:, -1] / z[-1])[:, None].numpy()
        low, middle, high = (part / size for part in _sampled_quantiles(one))
        for k, shade in enumerate(shades(len(one.levels), 0.85)):
            exact = one.exact[:, k].numpy() / size[:, 0]
            ax.plot(one.n, exact, color=shade, label=f"{100 * one.levels[k]:g} %")
            within(ax, one.n, middle[:, k], low[:, k], high[:, k], "o", shade, None, markersize=3)
            ax.axhline(z[k], color=shade, linestyle="--", linewidth=0.8)
        finish(ax, "tokens n", "", title, log="x", legend=BESIDE)
    axes[0].set_ylabel("quantile of the error / standard deviation by the CLT")
    _one_legend(axes[::-1])
    return drawn


def _one_legend(axes: Sequence[Axes]) -> None:
    """The first panel's names are those of all."""
    for ax in axes[1:]:
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()


def _sampled_quantiles(one: LawQuantiles) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantiles of the sampled errors with 95 % intervals, (n, q) each: between order statistics."""
    ordered, count = one.errors.sort(0).values.numpy(), len(one.errors)
    found = []
    for side in (-1.96, 0.0, 1.96):
        place = [level * count + side * sqrt(level * (1 - level) * count) for level in one.levels]
        found.append(ordered[np.clip(np.rint(place).astype(int) - 1, 0, count - 1)].T)
    return found[0], found[1], found[2]


WAYS = (
    ("exact", "different keys, exact", {"color": BLUE, "linewidth": 2}),
    ("independent", "independent keys", {"color": ORANGE}),
    ("coins", "coins", {"color": GREEN}),
    ("product", "the product f·g/h", {"color": PURPLE, "linestyle": ":", "linewidth": 2}),
)


def different_keys_figure(found: Sequence[tuple[str, DifferentErrors]]) -> Figure:
    """Root mean square errors against n, a population a panel."""
    drawn, axes = panels(len(found), 3.6 * len(found), 4.2)
    for ax, (title, one) in zip(axes, found, strict=True):
        for name, label, look in WAYS:
            ax.plot(one.n, getattr(one, name), label=label, **look)
        if one.enumerated is not None:
            ax.plot(one.n, one.enumerated, "x", color=BLACK, markersize=8, label="all sets")
        square = one.squares.mean(0)
        half = 1.96 * one.squares.std(0) / len(one.squares) ** 0.5 / (2 * square.sqrt())
        dots(ax, one.n, square.sqrt(), half, "o", BLUE, "sampled, 95 %")
        finish(ax, "keys drawn n", "", title, log="xy" if one.n[-1] > 20 else "y")
        if one.n[-1] <= 20:
            ax.set_xticks(one.n)
    axes[0].set_ylabel("rms error (unit of the values)")
    _one_legend(axes)
    return drawn
