"""Ours: errors without sampling, beside sampled ones, the published exponent and the sharp ones."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch

from attnlimit.exact import mean_output_error
from attnlimit.rates import ErrorCurve, exponents
from attnlimit.report.figures.law import different_keys_figure, law_figure
from attnlimit.report.figures.rates import Beside, beside_figure, sharp_rates_figure
from attnlimit.reproduce.result import Points, Reproduction, Verdict, lines, mean_with_interval, results
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.convergence import Convergence, Measured
from attnlimit.studies.kinds.different_keys import DifferentErrors
from attnlimit.studies.kinds.error_law import LawQuantiles
from attnlimit.studies.kinds.exact import ExactCurves

# --- exponents ------------------------------------------------------------------------------------

FAR = 1e8
SLACK = 0.015
"""How far the exponent continued from n > FAR to n → ∞ may be from the sharp one: the most seen is 0.0134, and the least
exponent tested is 0.05."""
CONTINUED = (
    f"Sharp exponents are those of n → ∞; the local exponents of the exact curve from n = {FAR:.0e} on are continued there by a "
    f"line in 1/log n, and held to ±{SLACK:g}. Exact curves have no noise, so there are no intervals."
)


def sharp_verdicts(points: Points) -> list[Verdict]:
    found = []
    for one in results(points, ExactCurves):
        H = one.horizon or 0.0
        known, local = exponents(H), float(one.rms.local_slopes()[-1])
        claim = (
            f"published: rms error falls at least like n^(−1/(2(1+H²))), H = {H:g}, n = {one.rms.n[-1]:.0e}"
        )
        found.append(Verdict.at_least(claim, float(known.paper), local))
        for name, words in (("rms", "rms"), ("mean_rms", "mean rms")):
            claim = f"sharp exponent of the {words} error, H = {H:g}, n → ∞"
            limit = continued(getattr(one, name))
            found.append(
                Verdict.equals(claim, float(getattr(known, name)), limit, slack=SLACK, note=CONTINUED)
            )
    return found


def continued(curve: ErrorCurve) -> float:
    """The exponent at n → ∞ of a line in 1/log n through the local ones beyond FAR: corrections fall like 1/log n."""
    log_n = np.log(np.array(curve.n, dtype=float))
    local = -np.diff(np.log(curve.error.numpy())) / np.diff(log_n)
    middle = (log_n[1:] + log_n[:-1]) / 2
    far = middle > math.log(FAR)
    return float(np.polyfit(1 / middle[far], local[far], 1)[1])


# --- the published Gaussian experiment ------------------------------------------------------------

TABLE = 0.002
"""Of the mean square, for the table of exact values."""
RESOLUTION = 0.3
"""Widest interval of a ratio that tells anything."""
FRESH = (
    "Fresh queries, which are none of the tokens; the published experiment has the tokens as queries. What is sampled of the exact value "
    "is the pair of queries alone, and its noise is in the interval."
)


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


def gaussian_verdicts(points: Points) -> list[Verdict]:
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
        found.append(
            Verdict.equals(claim, 1.0, mean, interval, slack=TABLE, resolution=RESOLUTION, note=FRESH)
        )
        claim = f"published: the mean output's error falls at least like n^(−1/(2(1+H²))), exact, H = {H:.3g}"
        found.append(Verdict.at_least(claim, float(exponents(H).paper), float(curve.local_slopes().min())))
    return found


def gaussian_table(points: Points) -> list[Row]:
    rows: list[Row] = []
    for one in pairs(points):
        sampled, noise = one.sampled, one.sampled.standard_error
        known = torch.tensor([one.exact.at(n) for n in sampled.n], dtype=torch.float64)
        columns = {"exact": known, "sampled": sampled.error, "sampled_standard_error": noise}
        rows += lines({"horizon": one.horizon}, {"n": sampled.n}, **columns)
    return rows


# --- the law of the error -------------------------------------------------------------------------

ALARM = 0.05
"""How often the comparison of a horizon would fail by chance."""
MASSART = f"The bound is that of Dvoretzky, Kiefer and Wolfowitz for all n together; chance breaks it {ALARM:.0%} of the time at most."


def distance(sizes: int, samples: int) -> float:
    """What sampled and true distribution functions differ by at most, but for ALARM of the time, at all of several n: Massart's
    constant in the Dvoretzky–Kiefer–Wolfowitz inequality."""
    return math.sqrt(math.log(2 * sizes / ALARM) / (2 * samples))


def law_verdicts(points: Points) -> list[Verdict]:
    found, farthest = [], 0.0
    for point, one in zip(points, results(points, LawQuantiles), strict=True):
        levels = one.exact.new_tensor(one.levels)
        most = distance(len(one.n), len(one.errors))
        away = float((one.below(one.exact) - levels).abs().max())
        claim = f"sampled and exact distribution functions differ at the exact quantiles by, {point.label}"
        found.append(Verdict.at_most(claim, most, away, note=MASSART))
        farthest = max(farthest, float((one.below(one.normal) - levels).abs().max()) / most)
    claim = (
        "the normal approximation is farther from the sample than chance allows by a factor of, at its worst"
    )
    return [
        *found,
        Verdict.at_least(claim, 3.0, farthest, note="The negative control: the comparison can fail."),
    ]


def law_table(points: Points) -> list[Row]:
    rows: list[Row] = []
    for point, one in zip(points, results(points, LawQuantiles), strict=True):
        sampled = torch.stack([one.errors.quantile(level, 0) for level in one.levels], 1)
        columns = {"exact": one.exact, "sampled": sampled, "normal": one.normal}
        rows += lines(point.varies, {"n": one.n, "level": one.levels}, **columns)
    return rows


# --- different keys -------------------------------------------------------------------------------

SAME = 1e-6
"""Relative, of the rms error, between the formula and all sets one by one."""
Z = 3.0
"""Standard errors between the formula and sampled sets, at the worst n; chance exceeds it at one of 20 n in 5 % of runs."""


def keys_verdicts(points: Points) -> list[Verdict]:
    found, worst = [], 0.0
    for point, one in zip(points, results(points, DifferentErrors), strict=True):
        keys = f"{point.what.keys} keys"
        worst = max(worst, float((one.product / one.exact).max()))
        if one.enumerated is not None:
            off = float((one.exact / one.enumerated - 1).abs().max())
            claim = f"exact / over all sets one by one, less 1, at the worst n, {keys}"
            found.append(Verdict.equals(claim, 0.0, off, slack=SAME))
        else:
            error = one.squares.std(0) / len(one.squares) ** 0.5
            away = float(((one.squares.mean(0) - one.exact.square()) / error).abs().max())
            claim = f"sampled less exact mean square, in standard errors, at the worst n, {keys}"
            found.append(Verdict.equals(claim, 0.0, away, slack=Z))
    claim = "the product f·g/h overstates the rms error by a factor of, at its worst"
    note = (
        "Two heavy keys of value 1 and a light one of value 0, n = 2 of 3: the exact rms error is 0.0012358."
    )
    return [*found, Verdict.at_least(claim, 10.0, worst, note=note)]


def keys_table(points: Points) -> list[Row]:
    rows: list[Row] = []
    for point, one in zip(points, results(points, DifferentErrors), strict=True):
        sampled = torch.stack([squares.mean() for squares in one.squares.T]).sqrt()
        columns = {"exact": one.exact, "enumerated": one.enumerated, "sampled": sampled}
        columns |= {"independent": one.independent, "coins": one.coins, "product": one.product}
        rows += lines(point.varies, {"n": one.n}, **columns)
    return rows


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
        name="sharp-rates",
        title="Exact curves to 10^12 tokens against the published and the sharp exponents",
        claim="The error of Gaussian tokens has the exponents of a random energy model, better than 1/(2(1+H²)).",
        figure=lambda points: sharp_rates_figure(results(points, ExactCurves)),
        verdicts=sharp_verdicts,
    ),
    Reproduction(
        name="gaussian-exact",
        title="The Gaussian experiment without sampling: error of the mean output at fresh queries",
        claim="The mean square error of the mean output of n Gaussian tokens is a double integral, averaged over two queries.",
        figure=lambda points: beside_figure(pairs(points)),
        verdicts=gaussian_verdicts,
        table=gaussian_table,
    ),
    Reproduction(
        name="exact-law",
        title="The exact law of the error, beside sampled errors and the normal approximation",
        claim="The distribution of the error of n tokens in a direction is a one-dimensional integral, at every n.",
        figure=lambda points: law_figure([(point.label, point.result) for point in points]),
        verdicts=law_verdicts,
        table=law_table,
    ),
    Reproduction(
        name="different-keys",
        title="n different keys exactly, beside other ways of drawing",
        claim="The error of n different keys is a contour integral over coins; independent keys, coins and their product are others.",
        figure=lambda points: different_keys_figure(_titled(points)),
        verdicts=keys_verdicts,
        table=keys_table,
    ),
)
