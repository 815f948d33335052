"""Published: subsamples of growing size cover the cloud of a layer's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.reproduce.compare import at_most, equals
from attnlimit.reproduce.heads import weights
from attnlimit.reproduce.result import Reproduction, Runs, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEC = "token-cloud"
NORMAL = 1.96


def figure(runs: Runs) -> Figure:
    from attnlimit.report.figures.token_cloud import token_cloud_figure

    point = runs[SPEC]["points"][0]
    return token_cloud_figure(point, f"Tokens behind layer {point['layer']}. {point['weights']}")


def verdicts(runs: Runs) -> list[Verdict]:
    point = runs[SPEC]["points"][0]
    found = []
    for k, n in enumerate(point["n"]):
        if n < point["points"]:
            value, half = point["energy"][k], NORMAL * point["energy_standard_error"][k]
            claim = (
                f"squared energy distance of {n} tokens to the cloud, over the mean distance of two tokens"
            )
            found.append(equals(claim, point["predicted"][k], value, (value - half, value + half)))
    return [_nearer(point), *found]


def _nearer(point: dict[str, Any]) -> Verdict:
    """Distance to the nearest member, from the smallest subsample to the largest."""
    first, last = point["nearest"][0], point["nearest"][-1]
    errors = np.array(point["nearest_standard_error"])
    ratio = last / first
    half = NORMAL * ratio * float(np.hypot(errors[0] / first, errors[-1] / last))
    sizes = point["n"]
    claim = f"subsamples cover the cloud: distance to the nearest member, {sizes[-1]} tokens over {sizes[0]}, is below 1"
    note = "Draws are nested, so the interval of the ratio is on the wide side."
    return at_most(claim, 1.0, ratio, (ratio - half, ratio + half), note=note)


RESULTS = (
    Reproduction(
        name=SPEC,
        title="t-SNE of a layer's tokens with subsamples of growing size",
        claim="Random subsamples of n tokens cover the token cloud better and better as n grows.",
        source="bohbot2026token",
        figure=figure,
        verdicts=verdicts,
        specs=(SPEC,),
        notes=(
            "The picture by t-SNE shows it; the verdict goes by distances in the layer's own space. For n different tokens "
            "of N the squared energy distance has mean (N − n)/(n(N − 1)) times the mean distance of two tokens, for "
            "any cloud.",
        ),
        said=weights,
    ),
)
