"""Ours: exact error curves to n = 10^12 against the published exponent and the sharp ones."""

from __future__ import annotations

from attnlimit.rates import exponents
from attnlimit.report.figures.sharp_rates import sharp_rates_figure
from attnlimit.reproduce.compare import at_least, equals
from attnlimit.reproduce.result import Points, Reproduction, Verdict, results
from attnlimit.studies.kinds.exact import ExactCurves

SLACK = 0.04
"""How far the exponent at 10^12 may be from its limit, for logarithmic corrections: the largest is 0.034, of the
rms error near its transition."""


def verdicts(points: Points) -> list[Verdict]:
    found = []
    for one in results(points, ExactCurves):
        H = one.horizon or 0.0
        known, local = exponents(H), float(one.rms.local_slopes()[-1])
        at = f"H = {H:g}, n = {one.rms.n[-1]:.0e}"
        found.append(
            at_least(
                f"published: rms error falls at least like n^(−1/(2(1+H²))), {at}", float(known.paper), local
            )
        )
        for name, words in (("rms", "rms"), ("mean_rms", "mean rms")):
            local = float(getattr(one, name).local_slopes()[-1])
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
        figure=lambda points: sharp_rates_figure(results(points, ExactCurves)),
        verdicts=verdicts,
    ),
)
