"""Ours: exact error curves to n = 10^12 against the published exponent and the sharp ones."""

from __future__ import annotations

import math

import numpy as np

from attnlimit.rates import exponents
from attnlimit.rates.error_curve import ErrorCurve
from attnlimit.report.figures.rates import sharp_rates_figure
from attnlimit.reproduce.compare import at_least, equals
from attnlimit.reproduce.result import Points, Reproduction, Verdict, results
from attnlimit.studies.kinds.exact import ExactCurves

FAR = 1e8
SLACK = 0.015
"""How far the exponent continued from n > FAR to n → ∞ may be from the sharp one: the most seen is 0.0134, and the least
exponent tested is 0.05."""


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
            claim = f"sharp exponent of the {words} error, H = {H:g}, n → ∞"
            limit = continued(getattr(one, name))
            found.append(equals(claim, float(getattr(known, name)), limit, slack=SLACK, note=NOTE))
    return found


def continued(curve: ErrorCurve) -> float:
    """The exponent at n → ∞ of a line in 1/log n through the local ones beyond FAR: corrections fall like 1/log n."""
    log_n = np.log(np.array(curve.n, dtype=float))
    local = -np.diff(np.log(curve.error.numpy())) / np.diff(log_n)
    middle = (log_n[1:] + log_n[:-1]) / 2
    far = middle > math.log(FAR)
    return float(np.polyfit(1 / middle[far], local[far], 1)[1])


NOTE = (
    f"Sharp exponents are those of n → ∞; the local exponents of the exact curve from n = {FAR:.0e} on are continued there by a "
    f"line in 1/log n, and held to ±{SLACK:g}. Exact curves have no noise, so there are no intervals."
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
