"""Published: subsamples of growing size cover the cloud of a layer's tokens."""

from __future__ import annotations

import numpy as np

from attnlimit.drawing import draw
from attnlimit.reproduce.result import Points, Reproduction, Verdict, only
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.token_cloud import Covered
from attnlimit.studies.model_fields import OfModel

NORMAL = 1.96


def verdicts(points: Points) -> list[Verdict]:
    cloud, found = only(points, Covered), []
    rows = zip(cloud.n, cloud.predicted, *cloud.energy, strict=True)
    for n, predicted, value, error in rows:
        if n < cloud.points:
            half = NORMAL * error
            claim = (
                f"squared energy distance of {n} tokens to the cloud, over the mean distance of two tokens"
            )
            found.append(Verdict.equals(claim, predicted, value, (value - half, value + half)))
    return [_nearer(cloud), *found]


def _nearer(cloud: Covered) -> Verdict:
    """Distance to the nearest member, from the smallest subsample to the largest."""
    distance, error = cloud.nearest
    ratio = distance[-1] / distance[0]
    half = NORMAL * ratio * float(np.hypot(error[0] / distance[0], error[-1] / distance[-1]))
    sizes = f"{cloud.n[-1]} tokens over {cloud.n[0]}"
    claim = f"subsamples cover the cloud: distance to the nearest member, {sizes}, is below 1"
    note = "Draws are nested, so the interval of the ratio is on the wide side."
    return Verdict.at_most(claim, 1.0, ratio, (ratio - half, ratio + half), note=note)


def table(points: Points) -> list[Row]:
    """One row for every size."""
    cloud = only(points, Covered)
    facts: Row = {
        "model": cloud.model,
        "layer": cloud.layer,
        "points": cloud.points,
        "draws": len(cloud.squares),
    }
    return [{**facts, **row} for row in cloud.shown()]


RESULTS = (
    Reproduction(
        name="token-cloud",
        title="t-SNE of a layer's tokens with subsamples of growing size",
        claim="Random subsamples of n tokens cover the token cloud better and better as n grows.",
        source="bohbot2026token",
        figure=lambda points: draw(only(points, Covered)),
        verdicts=verdicts,
        table=table,
        notes=(
            "The picture by t-SNE shows it; the verdict goes by distances in the layer's own space. For n different tokens "
            "of N the squared energy distance has mean (N − n)/(n(N − 1)) times the mean distance of two tokens, for "
            "any cloud.",
        ),
        more=OfModel.words,
    ),
)
