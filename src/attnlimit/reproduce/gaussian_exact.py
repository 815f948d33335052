"""Ours: the published Gaussian experiment without sampling, beside the sampled one."""

from __future__ import annotations

from functools import cache

import numpy as np

from attnlimit.exact import mean_output_error
from attnlimit.rates import ErrorCurve, exponents
from attnlimit.report.figures.rates import Beside, beside_figure
from attnlimit.reproduce.compare import at_least, equals, mean_with_interval
from attnlimit.reproduce.result import Points, Reproduction, Verdict, results
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.convergence import Convergence, Measured

TABLE = 0.002
"""Of the mean square, for the table of exact values."""
RESOLUTION = 0.3
"""Widest interval of a ratio that tells anything."""


def pairs(points: Points) -> list[Beside]:
    """The exact and the sampled curve at each horizon."""
    found = [
        Beside(one.horizon or 0.0, exact(point.what.model_dump_json()), one.curve)
        for point, one in zip(points, results(points, Measured), strict=True)
    ]
    return sorted(found, key=lambda one: one.horizon)


@cache
def exact(what: str) -> ErrorCurve:
    """Of the setting with this record: figure, table and verdicts all ask."""
    setting = Convergence.model_validate_json(what)
    return mean_output_error(*setting.build(), setting.n)


def verdicts(points: Points) -> list[Verdict]:
    found = []
    for point, one in zip(points, results(points, Measured), strict=True):
        curve = exact(point.what.model_dump_json())
        noise = 0.0 if curve.standard_error is None else float((curve.standard_error / curve.error).max())
        ratios = (one.experiment.squares / curve.error.square()).mean(1).numpy()
        mean, (low, high) = mean_with_interval(ratios)
        half = float(np.hypot((high - low) / 2, 1.96 * 2 * noise))
        H = one.horizon or 0.0
        claim = f"sampled / exact mean square error of the mean output, mean over n, H = {H:.3g}"
        interval = (mean - half, mean + half)
        found.append(equals(claim, 1.0, mean, interval, slack=TABLE, resolution=RESOLUTION, note=NOTE))
        claim = f"published: the mean output's error falls at least like n^(−1/(2(1+H²))), exact, H = {H:.3g}"
        found.append(at_least(claim, float(exponents(H).paper), float(curve.local_slopes().min())))
    return found


def table(points: Points) -> list[Row]:
    return [
        {
            "horizon": one.horizon,
            "n": n,
            "exact": one.exact.at(n),
            "sampled": float(one.sampled.error[k]),
            "sampled_standard_error": None
            if one.sampled.standard_error is None
            else float(one.sampled.standard_error[k]),
        }
        for one in pairs(points)
        for k, n in enumerate(one.sampled.n)
    ]


NOTE = (
    "Fresh queries, which are none of the tokens; the published experiment has the tokens as queries. What is sampled of the exact value "
    "is the pair of queries alone, and its noise is in the interval."
)
RESULTS = (
    Reproduction(
        name="gaussian-exact",
        title="The Gaussian experiment without sampling: error of the mean output at fresh queries",
        claim="The mean square error of the mean output of n Gaussian tokens is a double integral, averaged over two queries.",
        source="attnlimit",
        figure=lambda points: beside_figure(pairs(points)),
        verdicts=verdicts,
        table=table,
    ),
)
