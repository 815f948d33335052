"""Ours: whether the keys that explain a head's output are those that the answer comes from."""

from __future__ import annotations

import math

from attnlimit.drawing import Figure
from attnlimit.models.judge.faithful import CURVES, ORDERS
from attnlimit.models.see.gradient import CHANGE
from attnlimit.report.figures.style import BLUE, GREEN, ORANGE, SKY, finish, panels, within
from attnlimit.reproduce.result import Points, Reproduction, Verdict, mean_with_interval, results
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.faithfulness import Faithful
from attnlimit.studies.model_fields import OfModel

OURS, *OTHERS = ORDERS
COLOURS = dict(zip(ORDERS, (BLUE, SKY, ORANGE, GREEN, "0.45"), strict=True))
WORDS = {
    "insertion": "only the first keys are read: low is faithful",
    "deletion": "the first keys are left out: high is faithful",
}


def verdicts(points: Points) -> list[Verdict]:
    """Ours against every other order, by both curves, for every model."""
    return [
        _verdict(found, other, curve)
        for found in results(points, Faithful)
        for curve in CURVES
        for other in OTHERS
    ]


def _verdict(found: Faithful, other: str, curve: str) -> Verdict:
    mean, (low, high) = mean_with_interval(found.ratio(OURS, other, curve).numpy())
    what = "reads only the first" if curve == "insertion" else "reads all but the first"
    claim = f"{found.model} {what} keys by their {OURS}: change of the answer, over that by {other}"
    compare = Verdict.at_most if curve == "insertion" else Verdict.at_least
    note = "Geometric mean over shares of keys and windows."
    return compare(claim, 1.0, math.exp(mean), (math.exp(low), math.exp(high)), note=note)


def figure(points: Points) -> Figure:
    """A row of two panels for every model: insertion and deletion."""
    models = results(points, Faithful)
    drawn, axes = panels(2 * len(models), 5.2 * 2 * len(models))
    for place, found in enumerate(models):
        for c, curve in enumerate(CURVES):
            ax = axes[2 * place + c]
            for order in reversed(ORDERS):
                values = found.changes[:, ORDERS.index(order), c].numpy()
                spread = [mean_with_interval(column) for column in values.T]
                low, high = zip(*((max(low, 0.05 * mean), high) for mean, (low, high) in spread), strict=True)
                x, look = (
                    [100 * share for share in found.shares],
                    {"linewidth": 2.4 if order == OURS else 1.3},
                )
                within(ax, x, values.mean(0), low, high, "o-", COLOURS[order], order, **look)
            unit = CHANGE if found.unit == CHANGE else f"KL, {found.unit} a token"
            title = f"{found.model}, {found.tokens} tokens: {curve}\n{WORDS[curve]}"
            finish(ax, "keys, % of those seen", unit, title, log="xy")
    return drawn


def table(points: Points) -> list[Row]:
    """A row for every model, curve and share."""
    return [
        {"model": found.model, "tokens": found.tokens, "windows": len(found.changes), **row}
        for found in results(points, Faithful)
        for row in found.shown()
    ]


RESULTS = (
    Reproduction(
        name="faithfulness",
        title="Deletion and insertion of the keys that heads read",
        claim="Keys ordered by their part in the answer, |p gᵀ(v − Γ)|, are more faithful than keys ordered by attention weight.",
        figure=figure,
        verdicts=verdicts,
        table=table,
        notes=(
            "All heads and queries of the model read the changed set at once; orders are those of the full model. Whatever comes "
            "out is said: an order can be better by one curve and worse by the other.",
        ),
        more=OfModel.words,
    ),
)
