"""Published: hardmax is approached at rate 1/log n. On the sphere that is true of one rule for κ, not of the best."""

from __future__ import annotations

import math

from attnlimit.errors import RateNotResolved
from attnlimit.rates import Choice, choose
from attnlimit.report.figures.rates import hardmax_figure
from attnlimit.reproduce.compare import at_most, equals, holds
from attnlimit.reproduce.result import Points, Reproduction, Verdict, results
from attnlimit.studies.kinds.hardmax import Distance

SLACK = 0.02
"""Of exponents at 10^3 … 10^12 against n → ∞."""
WORDS = {"log": "C/log n", "power": "power of n"}


def verdicts(points: Points) -> list[Verdict]:
    found = []
    for one in results(points, Distance):
        at = f"sphere of R^{one.dim}"
        if one.rule == "log":
            found.append(_law(f"with κ = log n the error is C/log n, {at}", "log", one))
        elif one.rule == "best":
            found.append(_bound(f"with the best κ the error is at most C/log n, {at}", one))
            found.append(_law(f"with the best κ it is C/log n and no less, {at}", "log", one))
            found.append(_exponent("with the best κ: n^(−2/(d+1))", 2 / (one.dim + 1), one))
        else:
            found.append(_exponent("hardmax over n keys: n^(−1/(d−1))", 1 / (one.dim - 1), one))
    return found


def _law(claim: str, expected: str, one: Distance) -> Verdict:
    choice = _choice(one)
    if choice is None:
        return holds(claim, WORDS[expected], "neither is better", False, enough=False, note=NOTE)
    measured = f"{WORDS[choice.best]} (ΔAIC {abs(choice.delta_aic):.0f})"
    return holds(claim, WORDS[expected], measured, choice.best == expected, note=NOTE)


def _bound(claim: str, one: Distance) -> Verdict:
    """Whether error·log n does not grow."""
    scaled = [error * math.log(n) for n, error in zip(one.n, one.rms.tolist(), strict=True)]
    return at_most(f"{claim}: error·log n at the last n", scaled[0], scaled[-1])


def _choice(one: Distance) -> Choice | None:
    try:
        return choose(one.n, one.rms)
    except RateNotResolved:
        return None


def _exponent(words: str, expected: float, one: Distance) -> Verdict:
    claim, choice = f"{words}, sphere of R^{one.dim}", _choice(one)
    if choice is None or choice.best == "log":
        return holds(claim, f"power {expected:.3g}", "no power of n", False, enough=choice is not None)
    fit = choice.power
    return equals(claim, expected, fit.exponent, fit.interval, slack=SLACK)


NOTE = (
    "The published O(1/log n) is an upper bound for any compact law, from the worst case of the sampling error, and holds. "
    "It is not the rate of the best κ on a sphere: with κ ∝ n^(2/(d+1)) the error is a power of n; 1/log n is what the "
    "choice κ = γ log n gives. The two laws are compared by AIC on the same exact curve."
)
RESULTS = (
    Reproduction(
        name="hardmax-log-rate",
        title="The way to hardmax: power law against 1/log n",
        claim="When scores are sharpened with n, the hardmax limit is approached at a logarithmic rate, 1/log n.",
        source="bohbot2026token",
        figure=lambda points: hardmax_figure(results(points, Distance)),
        verdicts=verdicts,
    ),
)
