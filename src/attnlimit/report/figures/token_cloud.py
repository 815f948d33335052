"""The token cloud of a layer by t-SNE with subsamples in it, and how well they cover it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnlimit.drawing import Axes, Figure, figure
from attnlimit.report.figures.style import BLACK, BLUE, GREEN, ORANGE, panels
from attnlimit.studies.kinds.token_cloud import Covered

SHOWN = 3


@figure.register(Covered)
def token_cloud_figure(cloud: Covered) -> Figure:
    """The picture with subsamples of three sizes, and both measures of coverage."""
    drawn, axes = panels(SHOWN + 1, 15.0, 4.2)
    picture, order = cloud.picture.numpy(), np.array(cloud.order)
    sizes = _shown(cloud.n)
    for ax, n in zip(axes, sizes, strict=False):
        ax.plot(*picture.T, ".", color="0.8", markersize=3)
        ax.plot(*picture[order[:n]].T, ".", color=BLUE, markersize=5)
        ax.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
        ax.set_title(f"{n} of {cloud.points} tokens", fontsize=10, loc="left")
    for ax in axes[len(sizes) : SHOWN]:
        ax.set_axis_off()
    _coverage(axes[-1], cloud)
    drawn.suptitle(f"Tokens behind layer {cloud.layer}. {cloud.weights}", fontsize=10, x=0.01, ha="left")
    return drawn


def _shown(sizes: Sequence[int]) -> list[int]:
    """The first, a middle and the last."""
    return sorted({sizes[round(k * (len(sizes) - 1) / (SHOWN - 1))] for k in range(SHOWN)})


def _coverage(ax: Axes, cloud: Covered) -> None:
    n = np.array(cloud.n, dtype=float)
    both = (
        (cloud.energy, "squared energy distance", ORANGE, "o"),
        (cloud.nearest, "distance to the nearest", GREEN, "s"),
    )
    for mean, words, colour, marker in both:
        half = 1.96 * np.array(mean.standard_error)
        ax.errorbar(n, mean.value, yerr=half, fmt=marker, color=colour, markersize=4, capsize=3, label=words)
    fine = np.geomspace(n[0], n[-1], 100)
    predicted = (cloud.points - fine) / (fine * (cloud.points - 1))
    ax.plot(fine, predicted, "-", color=BLACK, linewidth=1, label="predicted: (N − n)/(n(N − 1))")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="tokens n of the subsample",
        ylabel="over the mean distance of two tokens",
    )
    ax.set_title(f"Coverage, {len(cloud.squares)} draws, 95 % intervals", fontsize=10, loc="left")
    ax.legend(frameon=False, fontsize=8)
