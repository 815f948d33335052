"""What the slopes of a model's heads say: the comparisons that BERT and BigBird share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from attnlimit.numerics.words import counted
from attnlimit.rates import exponents
from attnlimit.reproduce.compare import at_least, at_most, equals, holds
from attnlimit.reproduce.result import Outcome, Runs, Verdict

RESAMPLES = 2000
SLACK = 0.01
"""Relative error of closed forms for keys that are drawn without repetition."""
Heads = Sequence[dict[str, Any]]


def chosen(point: dict[str, Any], policy: str, population: str = "text") -> list[dict[str, Any]]:
    """The heads with one policy and population whose slope is known."""
    return [
        one
        for one in point["heads"]
        if (one["policy"], one["population"]) == (policy, population) and one["exponent"] is not None
    ]


def published_of(one: dict[str, Any]) -> float:
    return float(exponents(one["horizon"]).paper)


def slower(heads: Heads) -> list[dict[str, Any]]:
    """Heads whose whole interval is below the published exponent."""
    return [one for one in heads if one["interval"][1] < published_of(one)]


def mean_with_interval(values: np.ndarray) -> tuple[float, tuple[float, float]]:
    """A mean over heads, with its 95 % t interval."""
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / len(values) ** 0.5
    mean = float(values.mean())
    return mean, (mean - half, mean + half)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Spearman's, with a 95 % interval from resampled pairs of ranks.

    >>> round(rank_correlation([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 9.0])[0], 9)
    1.0
    """
    ranks = np.stack([stats.rankdata(x), stats.rankdata(y)])
    drawn = np.random.default_rng(0).integers(ranks.shape[1], size=(RESAMPLES, ranks.shape[1]))
    some = ranks[:, drawn]
    centred = some - some.mean(2, keepdims=True)
    spread = np.sqrt(np.square(centred).sum(2).prod(0))
    found = (centred[0] * centred[1]).sum(1)[spread > 0] / spread[spread > 0]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(stats.spearmanr(x, y).statistic), (float(low), float(high))


def margin(heads: Heads, which: str) -> Verdict:
    """Heads fall at least as fast as published, in the mean."""
    over = np.array([one["exponent"] - published_of(one) for one in heads])
    mean, interval = mean_with_interval(over)
    return at_least(
        f"no slower than published: fitted minus published exponent is at least 0, {which}",
        0.0,
        mean,
        interval,
    )


def every_head(heads: Heads, which: str) -> Verdict:
    """… and in every single one."""
    exceptions = len(slower(heads))
    note = (
        "The published exponent holds for sub-Gaussian tokens as n → ∞; a head whose weight rests on a few outlying "
        "keys is still before that at these n."
    )
    return holds(
        f"no slower than published in every head: interval reaches the published exponent, {which}",
        "all heads",
        f"{len(heads) - exceptions} of {len(heads)}",
        not exceptions,
        note=note if exceptions else "",
    )


def falls_with_horizon(heads: Heads, which: str) -> Verdict:
    """Rank correlation of slope and horizon."""
    value, interval = rank_correlation([one["horizon"] for one in heads], [one["exponent"] for one in heads])
    claim = f"slower the larger the horizon: rank correlation of exponent and H is below 0, {which}"
    return at_most(claim, 0.0, value, interval)


def nearer(heads: Heads, which: str) -> Verdict:
    """Ours: the sharp exponent of the rms error describes heads better than the published one."""
    sharp = np.array([float(exponents(one["horizon"]).rms) for one in heads])
    fitted = np.array([one["exponent"] for one in heads])
    published = np.array([published_of(one) for one in heads])
    mean, interval = mean_with_interval(np.abs(fitted - sharp) - np.abs(fitted - published))
    claim = f"ours: nearer to the sharp exponent than to the published one: difference of distances is below 0, {which}"
    note = "Both exponents are limits n → ∞ of Gaussian tokens; real heads at these n are neither."
    return at_most(claim, 0.0, mean, interval, note=note)


def closed_form(heads: Heads, which: str) -> Verdict:
    """Ours: Monte Carlo over the closed form is one."""
    ratio = np.log([np.array(one["rms"]) / np.array(one["exact"]) for one in heads]).mean(1)
    mean, (low, high) = mean_with_interval(ratio)
    interval = (float(np.exp(low)), float(np.exp(high)))
    claim = f"ours: no sampling is needed: Monte Carlo over closed form, {which}"
    return equals(claim, 1.0, float(np.exp(mean)), interval, slack=SLACK, resolution=0.05)


def without_weights(found: Sequence[Verdict]) -> list[Verdict]:
    """Claims about a trained model cannot be told from random weights; the numbers are shown all the same."""
    note = "Random weights: this tries the code, and says nothing of the trained model."
    return [replace(one, outcome=Outcome.CANNOT_TELL, note=note) for one in found]


def weights(runs: Runs) -> list[str]:
    """Which weights were used, of every study and point, each once."""
    return list(dict.fromkeys(point["weights"] for one in runs.values() for point in one["points"]))


def short_weights(point: dict[str, Any]) -> str:
    """The same for a figure."""
    return {"packaged-bert": "packaged BERT (MiniLM-L6)"}.get(
        point["model"], f"{point['model']}: random weights" if "random" in point["model"] else point["model"]
    )


def foot(point: dict[str, Any]) -> str:
    """Weights and sizes, for the foot of a figure."""
    some = counted(point["passages"], "passage")
    return f"{point['weights']} {some} × {point['queries']} queries, {point['replicates']} replicates."


def table(runs: Runs) -> list[dict[str, Any]]:
    """One row for every head, policy and n."""
    rows = []
    for one in runs.values():
        for point in one["points"]:
            for head in point["heads"]:
                low, high = head["interval"] or (None, None)
                facts = {"model": point["model"], "replicates": point["replicates"]}
                facts |= {
                    k: head[k] for k in ("population", "policy", "layer", "head", "horizon", "exponent")
                }
                facts |= {
                    "exponent_low": low,
                    "exponent_high": high,
                    "closed_form_exponent": head["exact_exponent"],
                }
                facts["published_exponent"] = published_of(head)
                for k, n in enumerate(point["sizes"]):
                    half = None if head["half_width"] is None else head["half_width"][k]
                    curve = {
                        "n": n,
                        "rms": head["rms"][k],
                        "half_width": half,
                        "closed_form": head["exact"][k],
                    }
                    rows.append({**facts, **curve})
    return rows
