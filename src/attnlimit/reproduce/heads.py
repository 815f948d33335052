"""What the slopes of a model's heads say: the comparisons that BERT and BigBird share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnlimit.designs import Sampling
from attnlimit.numerics.ranks import rank_correlation
from attnlimit.rates import exponents
from attnlimit.reproduce.compare import at_least, at_most, equals, holds, mean_with_interval
from attnlimit.reproduce.result import Outcome, Verdict
from attnlimit.studies.kinds.model_convergence import HeadsConverged, HeadSlope

RESAMPLES = 2000
SLACK = 0.01
"""Relative error of closed forms for keys that are drawn without repetition."""
WHICH = "mean over heads"
Heads = Sequence[HeadSlope]


def chosen(found: HeadsConverged, sampling: Sampling, population: str = "text") -> list[HeadSlope]:
    """The heads with one way of drawing from one population whose slope is known."""
    wanted = (sampling, population)
    return [
        one for one in found.slopes if (one.sampling, one.population) == wanted and one.exponent is not None
    ]


def slower(heads: Heads) -> list[HeadSlope]:
    """Heads whose whole interval is below the published exponent."""
    return [one for one in heads if one.interval is not None and one.interval[1] < one.published]


def fitted(heads: Heads) -> np.ndarray:
    return np.array([one.exponent for one in heads], dtype=float)


def margin(heads: Heads) -> Verdict:
    """Heads fall at least as fast as published, in the mean."""
    over = fitted(heads) - np.array([one.published for one in heads])
    mean, interval = mean_with_interval(over)
    claim = f"no slower than published: fitted minus published exponent is at least 0, {WHICH}"
    return at_least(claim, 0.0, mean, interval)


def every_head(heads: Heads) -> Verdict:
    """… and in every single one."""
    exceptions = len(slower(heads))
    note = (
        "The published exponent holds for sub-Gaussian tokens as n → ∞; a head whose weight rests on a few outlying "
        "keys is still before that at these n."
    )
    return holds(
        f"no slower than published in every head: interval reaches the published exponent, {heads[0].sampling}",
        "all heads",
        f"{len(heads) - exceptions} of {len(heads)}",
        not exceptions,
        note=note if exceptions else "",
    )


def falls_with_horizon(heads: Heads) -> Verdict:
    """Rank correlation of slope and horizon."""
    value, interval = rank_correlation([one.horizon for one in heads], fitted(heads).tolist())
    claim = "slower the larger the horizon: rank correlation of exponent and H is below 0, over heads"
    return at_most(claim, 0.0, value, interval)


def nearer(heads: Heads) -> Verdict:
    """Ours: the sharp exponent of the rms error describes heads better than the published one."""
    rates = [exponents(one.horizon) for one in heads]
    off = [np.abs(fitted(heads) - [float(one) for one in some]) for some in zip(*((r.rms, r.paper) for r in rates), strict=True)]  # fmt: skip
    mean, interval = mean_with_interval(off[0] - off[1])
    claim = f"ours: nearer to the sharp exponent than to the published one: difference of distances is below 0, {WHICH}"
    note = "Both exponents are limits n → ∞ of Gaussian tokens; real heads at these n are neither."
    return at_most(claim, 0.0, mean, interval, note=note)


def over_closed_form(one: HeadSlope) -> np.ndarray:
    """log of Monte Carlo over the closed form at each n."""
    ratio: np.ndarray = np.log((one.measured.error / one.closed.error).numpy())
    return ratio


def closed_form(heads: Heads, which: str = WHICH) -> Verdict:
    """Ours: Monte Carlo over the closed form is one."""
    mean, ends = mean_with_interval(np.array([over_closed_form(one).mean() for one in heads]))
    low, high = np.exp(ends).tolist()
    claim = f"ours: no sampling is needed: Monte Carlo over closed form, {which}"
    return equals(claim, 1.0, float(np.exp(mean)), (low, high), slack=SLACK, resolution=0.05)


def without_weights(found: Sequence[Verdict]) -> list[Verdict]:
    """Claims about a trained model cannot be told from random weights; the numbers are shown all the same."""
    note = "Random weights: this tries the code, and says nothing of the trained model."
    return [replace(one, outcome=Outcome.CANNOT_TELL, note=note) for one in found]
