"""The constants C(R) of the published uniform bound, exponential, and C'(R) of its bound for moments, polynomial."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats

from attnlimit import bounds
from attnlimit.attention import Head, clt
from attnlimit.measures import Measure
from attnlimit.rates import exponents
from attnlimit.reproduce.compare import at_most, equals, holds
from attnlimit.reproduce.growth import Growth, exponential, polynomial
from attnlimit.reproduce.result import Reproduction, Runs, Verdict
from attnlimit.studies.kinds.convergence import Convergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNIFORM, MOMENT = "uniform-constant", "moment-constant"
DELTA = 0.05
SLACK = 0.02
"""Of the exponent, since n is finite."""
LEAST_DELTA = 4.0
"""Difference of χ² from which one law of growth is better: both have two parameters."""


def _setting(summary: dict[str, Any], count: int) -> tuple[Head, Measure]:
    """The head and the law of a point, from the study's own fields."""
    what = {**summary["study"]["what"], "statistic": "map", "radius": None, "order": None}
    what["law"] = {**what["law"], "count": count}
    return Convergence.model_validate(what).build()


def uniform_rows(runs: Runs) -> list[dict[str, Any]]:
    """For each R: C = √n·E sup‖Γ_n − Γ‖ at the largest n, its standard error, the limit's at the edge, the bound's."""
    summary, rows = runs[UNIFORM], []
    for point in summary["points"]:
        count, n = point["varies"]["law.count"], point["n"][-1]
        head, law = _setting(summary, count)
        R = math.sqrt(count)
        edge = clt(head, law, torch.tensor([[R]], dtype=torch.float64)).covariance
        bound = bounds.uniform(head, law, R, n, DELTA)
        if bound.constant is None:
            raise TypeError("The uniform bound has a constant.")
        rows.append(
            {
                "R": R,
                "n": n,
                "C": math.sqrt(n) * point["mean"][-1],
                "C_error": math.sqrt(n) * point["mean_standard_error"][-1],
                "edge": math.sqrt(float(edge.reshape(()))),
                "bound": float(bound.constant),
                "exponent": point["fit"]["exponent"],
                "exponent_low": point["fit"]["interval"][0],
                "exponent_high": point["fit"]["interval"][1],
            }
        )
    return sorted(rows, key=lambda row: float(row["R"]))


def uniform_verdicts(runs: Runs) -> list[Verdict]:
    rows = uniform_rows(runs)
    R, C = [row["R"] for row in rows], [row["C"] for row in rows]
    relative = [row["C_error"] / row["C"] for row in rows]
    grown, power = exponential(R, C, relative), polynomial(R, C, relative)
    limit = exponential(R, [row["edge"] for row in rows], relative)
    slopes = np.array([row["exponent"] for row in rows])
    half = float(stats.t.ppf(0.975, len(slopes) - 1) * slopes.std(ddof=1) / len(slopes) ** 0.5)
    mean = float(slopes.mean())
    worst = max(row["C"] / row["bound"] for row in rows)
    return [
        equals(
            "the uniform error falls like n^(−1/2): exponent, mean over R",
            0.5,
            mean,
            (mean - half, mean + half),
            slack=SLACK,
            resolution=0.2,
        ),
        at_most("the proved bound holds: largest measured √n·error / bound", 1.0, worst),
        _better("C(R) grows exponentially, not as a power of R", "exponential", grown, power),
        equals(
            "rate of log C in R², against the central limit theorem at ‖x‖ = R",
            limit.slope,
            grown.slope,
            grown.interval,
        ),
    ]


def _better(claim: str, expected: str, grown: Growth, power: Growth) -> Verdict:
    gap = power.misfit - grown.misfit
    best = "exponential" if gap > 0 else "power of R"
    measured = f"{best} (Δχ² {abs(gap):.0f})"
    return holds(claim, expected, measured, best == expected, enough=abs(gap) >= LEAST_DELTA, note=FAMILY)


def moment_rows(runs: Runs) -> list[dict[str, Any]]:
    """For each statistic and R: C' = largest over n of n^{1/(2(1+H²))}·rms error, its standard error, and the constant
    of the proved bound on the error of the map."""
    summary, rows = runs[MOMENT], []
    for point in summary["points"]:
        count, rms = point["varies"]["law.count"], np.array(point["rms"])
        head, law = _setting(summary, count)
        n = np.array(point["n"], dtype=float)
        scale = n ** float(exponents(point["horizon"]).paper)
        at = int((scale * rms).argmax())
        bound = scale * bounds.averaged(head, law, point["n"]).value.double().numpy()
        rows.append(
            {
                "statistic": point["varies"]["statistic"],
                "R": math.sqrt(count),
                "n": int(n[at]),
                "C": float(scale[at] * rms[at]),
                "C_error": float(scale[at] * point["rms_standard_error"][at]),
                "bound": float(bound.max()),
            }
        )
    return sorted(rows, key=lambda row: (row["statistic"], row["R"]))


def moment_verdicts(runs: Runs) -> list[Verdict]:
    rows, found = moment_rows(runs), []
    rate = _edge_rate(runs[MOMENT]["points"][0]["horizon"])
    for statistic in dict.fromkeys(row["statistic"] for row in rows):
        some = [row for row in rows if row["statistic"] == statistic]
        R, C = [row["R"] for row in some], [row["C"] for row in some]
        relative = [row["C_error"] / row["C"] for row in some]
        large = (
            len(R) // 2
        )  # what is exponential is so at large R; at small ones a bounded constant may still rise
        power, grown = polynomial(R, C, relative), exponential(R[large:], C[large:], relative[large:])
        claim = f"C'(R) of the {statistic} grows at most linearly in R: its power of R"
        found.append(at_most(claim, 1.0, power.slope, power.interval, note=FAMILY))
        claim = f"C'(R) of the {statistic} does not grow like C(R): rate of its log in R² from R = {R[large]:.3g} on, at most a tenth of C(R)'s"
        found.append(at_most(claim, rate / 10, grown.slope, grown.interval))
    return found


def _edge_rate(H: float) -> float:
    """Of log C(R) in R²: ½D(HR)/R² for sums of signs."""
    return 0.5 * math.log(math.cosh(2 * H) / math.cosh(H) ** 2)


def uniform_figure(runs: Runs) -> Figure:
    from attnlimit.report.figures.constants import uniform_constant_figure

    return uniform_constant_figure(uniform_rows(runs), 1 - DELTA)


def moment_figure(runs: Runs) -> Figure:
    from attnlimit.report.figures.constants import moment_constant_figure

    rate = _edge_rate(runs[MOMENT]["points"][0]["horizon"])
    return moment_constant_figure(moment_rows(runs), rate)


FAMILY = (
    "Tokens are sums of R² random signs divided by R, one-dimensional: variance 1 and sub-Gaussian alike for every R, "
    "supported on [−R, R]; A = ½ and V = 1, so the horizon is ½ for all. Queries of the uniform error fill [−R, R]."
)
RESULTS = (
    Reproduction(
        name=UNIFORM,
        title="The constant of the uniform error, against the radius R",
        claim="Over all queries of a ball of radius R the error is at most C(R)/√n, with C exponential in R.",
        source="bohbot2026token",
        figure=uniform_figure,
        verdicts=uniform_verdicts,
        specs=(UNIFORM,),
        table=uniform_rows,
    ),
    Reproduction(
        name=MOMENT,
        title="The constant of the error of output moments, against the radius R",
        claim="The moments of the outputs converge like C'(R) n^(−1/(2(1+H²))), with C' polynomial in R.",
        source="bohbot2026token",
        figure=moment_figure,
        verdicts=moment_verdicts,
        specs=(MOMENT,),
        table=moment_rows,
    ),
)
