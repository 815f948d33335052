"""Ours: errors of n different keys, exactly."""

from __future__ import annotations

from attnlimit.report.figures.law import different_keys_figure
from attnlimit.reproduce.compare import at_least, equals
from attnlimit.reproduce.result import Points, Reproduction, Verdict, results
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.different_keys import DifferentErrors

SAME = 1e-6
"""Relative, of the rms error, between the formula and all sets one by one."""
Z = 3.0
"""Standard errors between the formula and sampled sets, at the worst n; chance exceeds it at one of 20 n in 5 % of runs."""


def verdicts(points: Points) -> list[Verdict]:
    found, worst = [], 0.0
    for point, one in zip(points, results(points, DifferentErrors), strict=True):
        keys = f"{point.what.keys} keys"
        worst = max(worst, float((one.product / one.exact).max()))
        if one.enumerated is not None:
            off = float((one.exact / one.enumerated - 1).abs().max())
            claim = f"exact / over all sets one by one, less 1, at the worst n, {keys}"
            found.append(equals(claim, 0.0, off, slack=SAME))
        else:
            error = one.squares.std(0) / len(one.squares) ** 0.5
            away = float(((one.squares.mean(0) - one.exact.square()) / error).abs().max())
            claim = f"sampled less exact mean square, in standard errors, at the worst n, {keys}"
            found.append(equals(claim, 0.0, away, slack=Z))
    claim = "the product f·g/h overstates the rms error by a factor of, at its worst"
    note = (
        "Two heavy keys of value 1 and a light one of value 0, n = 2 of 3: the exact rms error is 0.0012358."
    )
    return [*found, at_least(claim, 10.0, worst, note=note)]


def table(points: Points) -> list[Row]:
    return [
        {
            **point.varies,
            "n": n,
            "exact": float(one.exact[k]),
            "enumerated": None if one.enumerated is None else float(one.enumerated[k]),
            "sampled": float(one.squares[:, k].mean().sqrt()),
            "independent": float(one.independent[k]),
            "coins": float(one.coins[k]),
            "product": float(one.product[k]),
        }
        for point, one in zip(points, results(points, DifferentErrors), strict=True)
        for k, n in enumerate(one.n)
    ]


def _titled(points: Points) -> list[tuple[str, DifferentErrors]]:
    words = {"two_heavy": "two heavy, {} light", "random": "{} keys, scores of deviation {:g}"}
    found = []
    for point, one in zip(points, results(points, DifferentErrors), strict=True):
        what = point.what
        number = what.keys - 2 if what.population == "two_heavy" else what.keys
        found.append((words[what.population].format(number, what.spread), one))
    return found


RESULTS = (
    Reproduction(
        name="different-keys",
        title="n different keys exactly, beside other ways of drawing",
        claim="The error of n different keys is a contour integral over coins; independent keys, coins and their product are others.",
        source="attnlimit",
        figure=lambda points: different_keys_figure(_titled(points)),
        verdicts=verdicts,
        table=table,
    ),
)
