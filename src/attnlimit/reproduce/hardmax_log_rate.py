"""Published: hardmax is approached at rate 1/log n. On the sphere that is true of one rule for κ, not of the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attnlimit.errors import RateNotResolved
from attnlimit.rates import Choice, choose
from attnlimit.reproduce.compare import at_most, equals, holds
from attnlimit.reproduce.result import Reproduction, Runs, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEC = "hardmax-log-rate"
SLACK = 0.02
"""Of exponents at 10^3 … 10^12 against n → ∞."""
WORDS = {"log": "C/log n", "power": "power of n"}


def figure(runs: Runs) -> Figure:
    from attnlimit.report.figures.hardmax import hardmax_figure

    return hardmax_figure(runs[SPEC]["points"])


def verdicts(runs: Runs) -> list[Verdict]:
    found = []
    for point in runs[SPEC]["points"]:
        at = f"sphere of R^{point['dim']}"
        if point["kappa"] == "log":
            found.append(_law(f"with κ = log n the error is C/log n, {at}", "log", point))
        elif point["kappa"] == "best":
            found.append(_bound(f"with the best κ the error is at most C/log n, {at}", point))
            found.append(_law(f"with the best κ it is C/log n and no less, {at}", "log", point))
            found.append(_exponent("with the best κ: n^(−2/(d+1))", 2 / (point["dim"] + 1), point))
        else:
            found.append(_exponent("hardmax over n keys: n^(−1/(d−1))", 1 / (point["dim"] - 1), point))
    return found


def _law(claim: str, expected: str, point: dict[str, Any]) -> Verdict:
    choice = _choice(point)
    if choice is None:
        return holds(claim, WORDS[expected], "neither is better", False, enough=False, note=NOTE)
    measured = f"{WORDS[choice.best]} (ΔAIC {abs(choice.delta_aic):.0f})"
    return holds(claim, WORDS[expected], measured, choice.best == expected, note=NOTE)


def _bound(claim: str, point: dict[str, Any]) -> Verdict:
    """Whether error·log n does not grow."""
    scaled = [error * math.log(n) for n, error in zip(point["n"], point["rms"], strict=True)]
    return at_most(f"{claim}: error·log n at the last n", scaled[0], scaled[-1])


def _choice(point: dict[str, Any]) -> Choice | None:
    try:
        return choose(point["n"], point["rms"])
    except RateNotResolved:
        return None


def _exponent(words: str, expected: float, point: dict[str, Any]) -> Verdict:
    claim, choice = f"{words}, sphere of R^{point['dim']}", _choice(point)
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
        figure=figure,
        verdicts=verdicts,
        specs=(SPEC,),
    ),
)
