"""From a number with its interval to an outcome."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from attnlimit.reproduce.result import Outcome, Verdict

Interval = tuple[float, float]


def mean_with_interval(values: np.ndarray) -> tuple[float, Interval]:
    """A mean of independent values, with its 95 % t interval."""
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / len(values) ** 0.5
    mean = float(values.mean())
    return mean, (mean - half, mean + half)


def equals(
    claim: str,
    predicted: float,
    measured: float,
    interval: Interval | None = None,
    *,
    slack: float = 0.0,
    resolution: float = math.inf,
    note: str = "",
) -> Verdict:
    """Agrees when predicted ± slack meets the interval and that is no wider than `resolution`.

    Slack is for what the prediction leaves out (n → ∞ against finite n), never for noise, which is in the interval.

    >>> equals("a", 0.5, 0.49, (0.47, 0.51)).outcome.value, equals("a", 0.5, 0.4, (0.38, 0.42)).outcome.value
    ('agrees', 'differs')
    >>> equals("a", 0.5, 0.3, (-0.4, 1.0), resolution=0.2).outcome.value
    'cannot tell'
    """
    low, high = (measured, measured) if interval is None else interval
    if not low - slack <= predicted <= high + slack:
        outcome = Outcome.DIFFERS
    else:
        outcome = Outcome.AGREES if high - low <= resolution else Outcome.CANNOT_TELL
    return Verdict(claim, predicted, measured, interval, outcome, note)


def at_least(
    claim: str,
    predicted: float,
    measured: float,
    interval: Interval | None = None,
    *,
    slack: float = 0.0,
    note: str = "",
) -> Verdict:
    """Agrees when the whole interval is above predicted − slack, differs when it is all below.

    >>> [at_least("a", 0.3, x, (x - 0.1, x + 0.1)).outcome.value for x in (0.5, 0.35, 0.1)]
    ['agrees', 'cannot tell', 'differs']
    """
    low, high = (measured, measured) if interval is None else interval
    if low >= predicted - slack:
        outcome = Outcome.AGREES
    else:
        outcome = Outcome.DIFFERS if high < predicted - slack else Outcome.CANNOT_TELL
    return Verdict(claim, predicted, measured, interval, outcome, note, "at least")


def at_most(
    claim: str,
    predicted: float,
    measured: float,
    interval: Interval | None = None,
    *,
    slack: float = 0.0,
    note: str = "",
) -> Verdict:
    """Agrees when the whole interval is below predicted + slack, differs when it is all above.

    >>> at_most("a", 1.0, 0.8, (0.7, 0.9)).outcome.value
    'agrees'
    """
    turned = None if interval is None else (-interval[1], -interval[0])
    found = at_least(claim, -predicted, -measured, turned, slack=slack)
    return Verdict(claim, predicted, measured, interval, found.outcome, note, "at most")


def holds(
    claim: str, predicted: str, measured: str, yes: bool, *, enough: bool = True, note: str = ""
) -> Verdict:
    """A claim that is no number: true or not, or not to be told from these data.

    >>> holds("a", "power law", "power law", True).outcome.value
    'agrees'
    """
    outcome = Outcome.CANNOT_TELL if not enough else Outcome.AGREES if yes else Outcome.DIFFERS
    return Verdict(claim, predicted, measured, None, outcome, note)
