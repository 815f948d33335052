"""Ours: exact error curves to n = 10^12 against the published exponent and the sharp ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlimit.rates import exponents
from attnlimit.report.figures.sharp_rates import sharp_rates_figure
from attnlimit.reproduce.compare import at_least, equals
from attnlimit.reproduce.result import Reproduction, Runs, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEC = "sharp-rates"
SLACK = 0.04
"""How far the exponent at 10^12 may be from its limit, for logarithmic corrections: the largest is 0.034, of the
rms error near its transition."""


def figure(runs: Runs) -> Figure:
    return sharp_rates_figure([point.result for point in runs[SPEC].points])


def verdicts(runs: Runs) -> list[Verdict]:
    found = []
    for point in runs[SPEC].points:
        H, known = point.result.horizon, exponents(point.result.horizon)
        local = float(point.result.rms.local_slopes()[-1])
        at = f"H = {H:g}, n = {point.result.rms.n[-1]:.0e}"
        found.append(
            at_least(
                f"published: rms error falls at least like n^(−1/(2(1+H²))), {at}", float(known.paper), local
            )
        )
        for name, words in (("rms", "rms"), ("mean_rms", "mean rms")):
            local = float(getattr(point.result, name).local_slopes()[-1])
            claim = f"sharp exponent of the {words} error, {at}"
            found.append(equals(claim, float(getattr(known, name)), local, slack=SLACK, note=NOTE))
    return found


NOTE = (
    f"Sharp exponents are those of n → ∞; curves at n = 10^12 may differ by {SLACK:g} for corrections that fall "
    "like 1/log n. Exact curves have no noise, so there are no intervals."
)
RESULTS = (
    Reproduction(
        name="sharp-rates",
        title="Exact curves to 10^12 tokens against the published and the sharp exponents",
        claim="The error of Gaussian tokens has the exponents of a random energy model, better than 1/(2(1+H²)).",
        source="attnlimit",
        figure=figure,
        verdicts=verdicts,
        specs=(SPEC,),
    ),
)
