"""Ours: the exact law of the error beside sampled errors and the normal approximation."""

from __future__ import annotations

import math

from attnlimit.report.figures.law import law_figure
from attnlimit.reproduce.compare import at_least, at_most
from attnlimit.reproduce.result import Points, Reproduction, Verdict, results
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.error_law import LawQuantiles

ALARM = 0.05
"""How often the comparison of a horizon would fail by chance."""


def distance(sizes: int, samples: int) -> float:
    """What sampled and true distribution functions differ by at most, but for ALARM of the time, at all of several n: Massart's
    constant in the Dvoretzky–Kiefer–Wolfowitz inequality."""
    return math.sqrt(math.log(2 * sizes / ALARM) / (2 * samples))


def verdicts(points: Points) -> list[Verdict]:
    found, farthest = [], 0.0
    for point, one in zip(points, results(points, LawQuantiles), strict=True):
        levels = one.exact.new_tensor(one.levels)
        most = distance(len(one.n), len(one.errors))
        away = float((one.below(one.exact) - levels).abs().max())
        claim = f"sampled and exact distribution functions differ at the exact quantiles by, {point.label}"
        found.append(at_most(claim, most, away, note=NOTE))
        farthest = max(farthest, float((one.below(one.normal) - levels).abs().max()) / most)
    claim = (
        "the normal approximation is farther from the sample than chance allows by a factor of, at its worst"
    )
    return [*found, at_least(claim, 3.0, farthest, note="The negative control: the comparison can fail.")]


def table(points: Points) -> list[Row]:
    return [
        {
            **point.varies,
            "n": n,
            "level": level,
            "exact": float(one.exact[k, q]),
            "sampled": float(one.errors[:, k].quantile(level)),
            "normal": float(one.normal[k, q]),
        }
        for point, one in zip(points, results(points, LawQuantiles), strict=True)
        for k, n in enumerate(one.n)
        for q, level in enumerate(one.levels)
    ]


def _titled(points: Points) -> list[tuple[str, LawQuantiles]]:
    return [(point.label, one) for point, one in zip(points, results(points, LawQuantiles), strict=True)]


NOTE = f"The bound is that of Dvoretzky, Kiefer and Wolfowitz for all n together; chance breaks it {ALARM:.0%} of the time at most."
RESULTS = (
    Reproduction(
        name="exact-law",
        title="The exact law of the error, beside sampled errors and the normal approximation",
        claim="The distribution of the error of n tokens in a direction is a one-dimensional integral, at every n.",
        source="attnlimit",
        figure=lambda points: law_figure(_titled(points)),
        verdicts=verdicts,
        table=table,
    ),
)
