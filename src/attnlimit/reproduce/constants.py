"""The constants C(R) of the published uniform bound, exponential, and C'(R) of its bound for moments, polynomial."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats

from attnlimit import bounds
from attnlimit.attention import clt
from attnlimit.rates import exponents
from attnlimit.report.figures.rates import (
    MomentConstant,
    UniformConstant,
    moment_constant_figure,
    uniform_constant_figure,
)
from attnlimit.reproduce.result import Points, Reproduction, Verdict, mean_with_interval

DELTA = 0.05
SLACK = 0.02
"""Of the exponent, since n is finite."""
LEAST_DELTA = 4.0
"""Difference of χ² from which one law of growth is better: both have two parameters."""


@dataclass(frozen=True)
class Growth:
    """log C = intercept + slope·(R² or log R), by least squares weighted with the standard errors of log C."""

    slope: float
    interval: tuple[float, float]
    """95 %; widened by the root of χ² per degree of freedom where the law does not fit within the errors."""
    misfit: float
    """χ², over all R."""


def growth(law: Callable[..., np.ndarray], R: Any, C: Any, relative_error: Any) -> Growth:
    """C = c·e^{slope·R²} or c·R^{slope}: log C is linear in law(R), np.square or np.log.

    >>> round(growth(np.square, [1, 2, 3], np.exp(0.5 * np.array([1, 4, 9])), [0.01, 0.01, 0.01]).slope, 6)
    0.5
    >>> round(growth(np.log, [1, 2, 3], [2.0, 8.0, 18.0], [0.01, 0.01, 0.01]).slope, 6)
    2.0
    """
    x = law(np.asarray(R, dtype=float))
    y, weight = np.log(np.asarray(C, dtype=float)), np.asarray(relative_error, dtype=float) ** -2.0
    share = weight / weight.sum()
    centred = x - share @ x
    slope = float((weight * centred) @ y / (weight @ centred**2))
    residuals = y - share @ y - slope * centred
    misfit, free = float(weight @ residuals**2), max(1, len(x) - 2)
    error = float((weight @ centred**2) ** -0.5) * max(1.0, misfit / free) ** 0.5
    half = float(stats.t.ppf(0.975, free)) * error
    return Growth(slope, (slope - half, slope + half), misfit)


def uniform_rows(points: Points) -> list[UniformConstant]:
    """For each R: C = √n·E sup‖Γ_n − Γ‖ at the largest n, its standard error, the limit's at the edge, the bound's."""
    rows = []
    for point in points:
        (head, law), found = point.what.build(), point.result.experiment
        R, n, fit = math.sqrt(point.what.law.count), found.n[-1], point.result.fit
        edge = clt(head, law, torch.tensor([[R]], dtype=torch.float64)).covariance
        bound = bounds.uniform(head, law, R, n, DELTA, method="kernel")
        if bound.constant is None or fit is None:
            raise TypeError("The uniform bound has a constant, and the error a slope.")
        rows.append(
            UniformConstant(
                R=R,
                n=n,
                C=math.sqrt(n) * float(found.mean[-1]),
                C_error=math.sqrt(n) * float(found.mean_standard_error[-1]),
                bound=float(bound.constant),
                edge=math.sqrt(float(edge.reshape(()))),
                exponent=fit.exponent,
                exponent_low=fit.interval[0],
                exponent_high=fit.interval[1],
            )
        )
    return sorted(rows, key=lambda row: row.R)


def uniform_verdicts(points: Points) -> list[Verdict]:
    rows = uniform_rows(points)
    R, C = [row.R for row in rows], [row.C for row in rows]
    relative = [row.C_error / row.C for row in rows]
    grown, power = (growth(law, R, C, relative) for law in (np.square, np.log))
    limit = growth(np.square, R, [row.edge for row in rows], relative)
    worst = max(row.C / row.bound for row in rows)
    return [
        Verdict.equals(
            "the uniform error falls like n^(−1/2): exponent, mean over R",
            0.5,
            *mean_with_interval(np.array([row.exponent for row in rows])),
            slack=SLACK,
            resolution=0.2,
        ),
        Verdict.at_most("the proved bound holds: largest measured √n·error / bound", 1.0, worst),
        _better("C(R) grows exponentially, not as a power of R", "exponential", grown, power),
        Verdict.equals(
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
    return Verdict.holds(
        claim, expected, measured, best == expected, enough=abs(gap) >= LEAST_DELTA, note=FAMILY
    )


def moment_rows(points: Points) -> list[MomentConstant]:
    """For each statistic and R: C' = largest over n of n^{1/(2(1+H²))}·rms error, its standard error, and the constant
    of the proved bound on the error of the map."""
    rows = []
    for point in points:
        (head, law), found = point.what.build(), point.result.experiment
        rms, noise = found.rms.numpy(), found.rms_standard_error.numpy()
        n = np.array(found.n, dtype=float)
        scale = n ** float(exponents(point.result.horizon).paper)
        at = int((scale * rms).argmax())
        bound = scale * bounds.averaged(head, law, found.n).value.double().numpy()
        rows.append(
            MomentConstant(
                statistic=found.statistic,
                R=math.sqrt(point.what.law.count),
                n=found.n[at],
                C=float(scale[at] * rms[at]),
                C_error=float(scale[at] * noise[at]),
                bound=float(bound.max()),
            )
        )
    return sorted(rows, key=lambda row: (row.statistic, row.R))


def moment_verdicts(points: Points) -> list[Verdict]:
    rows, found = moment_rows(points), []
    rate = _edge_rate(points)
    for statistic in dict.fromkeys(row.statistic for row in rows):
        some = [row for row in rows if row.statistic == statistic]
        R, C = [row.R for row in some], [row.C for row in some]
        relative = [row.C_error / row.C for row in some]
        large = len(R) // 2  # what is exponential is so there; at small R a bounded constant may still rise
        power = growth(np.log, R, C, relative)
        grown = growth(np.square, R[large:], C[large:], relative[large:])
        claim = f"C'(R) of the {statistic} grows at most linearly in R: its power of R"
        found.append(Verdict.at_most(claim, 1.0, power.slope, power.interval, note=FAMILY))
        claim = f"C'(R) of the {statistic} does not grow like C(R): rate of its log in R² from R = {R[large]:.3g} on, at most a tenth of C(R)'s"
        found.append(Verdict.at_most(claim, rate / 10, grown.slope, grown.interval))
    return found


def _edge_rate(points: Points) -> float:
    """Of log C(R) in R²: ½D(HR)/R² for sums of signs."""
    H = points[0].result.horizon
    return 0.5 * math.log(math.cosh(2 * H) / math.cosh(H) ** 2)


FAMILY = (
    "Tokens are sums of R² random signs divided by R, one-dimensional: variance 1 and sub-Gaussian alike for every R, "
    "supported on [−R, R]; A = ½ and V = 1, so the horizon is ½ for all. Queries of the uniform error fill [−R, R]."
)
RESULTS = (
    Reproduction(
        name="uniform-constant",
        title="The constant of the uniform error, against the radius R",
        claim="Over all queries of a ball of radius R the error is at most C(R)/√n, with C exponential in R.",
        source="bohbot2026token",
        figure=lambda points: uniform_constant_figure(uniform_rows(points), 1 - DELTA),
        verdicts=uniform_verdicts,
        table=lambda points: [asdict(row) for row in uniform_rows(points)],
    ),
    Reproduction(
        name="moment-constant",
        title="The constant of the error of output moments, against the radius R",
        claim="The moments of the outputs converge like C'(R) n^(−1/(2(1+H²))), with C' polynomial in R.",
        source="bohbot2026token",
        figure=lambda points: moment_constant_figure(moment_rows(points), _edge_rate(points)),
        verdicts=moment_verdicts,
        table=lambda points: [asdict(row) for row in moment_rows(points)],
    ),
)
