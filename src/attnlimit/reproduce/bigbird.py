"""Published: BigBird's heads on long texts, with independent keys, and with a window and random keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.reproduce import heads
from attnlimit.reproduce.compare import equals
from attnlimit.reproduce.result import Reproduction, Runs, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IID, WINDOW = "bigbird-iid", "bigbird-window"


def _point(runs: Runs) -> dict[str, Any]:
    point: dict[str, Any] = next(iter(runs.values()))["points"][0]
    return point


def _random(point: dict[str, Any]) -> bool:
    return str(point["model"]).startswith("random")


def iid_figure(runs: Runs) -> Figure:
    return _figure(_point(runs), "iid", "independent keys", ())


def window_figure(runs: Runs) -> Figure:
    point = _point(runs)
    others = heads.chosen(point, "window-importance")
    return _figure(point, "window", f"{point['window']} keys around the query, the rest random", others)


def _figure(point: dict[str, Any], policy: str, words: str, other: Any) -> Figure:
    from attnlimit.report.figures.model_heads import model_heads_figure

    return model_heads_figure(
        heads.chosen(point, policy),
        point["sizes"],
        f"{heads.short_weights(point)}, {point['tokens']} tokens,\n{words}",
        heads.foot(point),
        other,
    )


def iid_verdicts(runs: Runs) -> list[Verdict]:
    point = _point(runs)
    found = heads.chosen(point, "iid")
    which = "mean over heads"
    about = [
        heads.margin(found, which),
        heads.every_head(found, "independent keys"),
        heads.falls_with_horizon(found, "over heads"),
    ]
    return [*(heads.without_weights(about) if _random(point) else about), heads.closed_form(found, which)]


def window_verdicts(runs: Runs) -> list[Verdict]:
    point = _point(runs)
    plain, weighted = heads.chosen(point, "window"), heads.chosen(point, "window-importance")
    which = "mean over heads"
    about = [
        heads.margin(plain, which),
        heads.falls_with_horizon(plain, "over heads"),
    ]
    return [
        *(heads.without_weights(about) if _random(point) else about),
        _importance(plain, weighted),
        heads.closed_form(plain, "plain random keys"),
        heads.closed_form(weighted, "random keys that stand for all others"),
    ]


def _importance(plain: heads.Heads, weighted: heads.Heads) -> Verdict:
    """Ours: what it gives at the least n that random keys stand for all others, beside plain ones."""

    def ratios(name: str) -> np.ndarray:
        return np.array([np.log(b[name][0] / a[name][0]) for a, b in zip(plain, weighted, strict=True)])

    expected = float(ratios("exact").mean())
    error, (low, high) = heads.mean_with_interval(ratios("rms") - ratios("exact"))
    claim = "ours: random keys that stand for all others, over plain ones: ratio of errors at the least n, in closed form"
    measured, *interval = (float(np.exp(expected + one)) for one in (error, low, high))
    return equals(claim, float(np.exp(expected)), measured, (interval[0], interval[1]), slack=heads.SLACK)


NOTES = (
    "BigBird is run with full attention in place of its random blocks, and keys are drawn for each head by itself.",
    "Weights of google/bigbird-roberta-base are used where they can be had. With random weights the query weights are "
    "scaled so that horizons spread.",
)
RESULTS = (
    Reproduction(
        name=IID,
        title="BigBird on long articles, independent keys: slope against horizon",
        claim="The same as for BERT holds in BigBird on texts of thousands of tokens.",
        source="bohbot2026token",
        figure=iid_figure,
        verdicts=iid_verdicts,
        specs=(IID,),
        table=heads.table,
        notes=NOTES,
        said=heads.weights,
    ),
    Reproduction(
        name=WINDOW,
        title="BigBird on long articles, a window and random keys: slope against horizon",
        claim="With a window around the query and r random keys the error still falls with n at a rate that depends on "
        "the horizon.",
        source="bohbot2026token",
        figure=window_figure,
        verdicts=window_verdicts,
        specs=(WINDOW,),
        table=heads.table,
        notes=NOTES,
        said=heads.weights,
    ),
)
