"""Published: outputs and gradients over prompts of L tokens concentrate around those of the infinite prompt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlimit.reproduce.compare import at_least, at_most, equals
from attnlimit.reproduce.result import Reproduction, Runs, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEC = "gradient-concentration"
QUANTITIES = {"output": "output", "A": "gradient in A", "V": "gradient in V"}


def verdicts(runs: Runs) -> list[Verdict]:
    points = sorted(runs[SPEC]["points"], key=lambda point: float(point["horizon"]))
    found = [_exact(points)]
    for name in ("A", "V"):
        worst = min(points, key=lambda point: point[name]["fit"]["interval"][0])
        fit, H = worst[name]["fit"], worst["horizon"]
        claim = f"the {QUANTITIES[name]} concentrates at every horizon: least exponent of L, at H = {H:.3g}"
        found.append(at_least(claim, 0.0, fit["exponent"], tuple(fit["interval"])))
        found.append(_falls(name, points))
    for point in points:
        if point["horizon"] ** 2 <= 0.5:
            fit = point["A"]["fit"]
            claim = f"for H² ≤ ½ the gradient in A concentrates like L^(−1/2), H = {point['horizon']:.3g}"
            found.append(equals(claim, 0.5, fit["exponent"], tuple(fit["interval"]), slack=SLACK, note=NOTE))
    return found


def _exact(points: list[dict[str, Any]]) -> Verdict:
    """The largest difference of sampled and exact rms outputs, in standard errors, over all points and lengths."""
    scores = []
    for point in points:
        measured, exact = np.array(point["output"]["rms"]), np.array(point["exact_output_rms"])
        scores.append(np.abs(measured - exact) / np.array(point["output"]["rms_standard_error"]))
    claim = "sampled output errors are the exact ones: largest difference in standard errors"
    return at_most(claim, ALLOWED, float(np.max(scores)), note=ERRORS)


def _falls(name: str, points: list[dict[str, Any]]) -> Verdict:
    first, last = points[0][name]["fit"], points[-1][name]["fit"]
    fall = first["exponent"] - last["exponent"]
    half = math.hypot(*((fit["interval"][1] - fit["interval"][0]) / 2 for fit in (first, last)))
    claim = f"the exponent of the {QUANTITIES[name]} falls as scores spread, H = {points[0]['horizon']:.3g} to {points[-1]['horizon']:.3g}"
    return at_least(f"{claim}: by more than", 0.0, fall, (fall - half, fall + half))


def figure(runs: Runs) -> Figure:
    from attnlimit.report.figures.gradient_concentration import gradient_concentration_figure

    return gradient_concentration_figure(runs[SPEC]["points"], QUANTITIES)


def table(runs: Runs) -> list[dict[str, Any]]:
    return [
        {
            "horizon": point["horizon"],
            "quantity": name,
            "n": n,
            "rms": point[name]["rms"][i],
            "rms_standard_error": point[name]["rms_standard_error"][i],
            "exact": point["exact_output_rms"][i] if name == "output" else None,
        }
        for point in runs[SPEC]["points"]
        for name in QUANTITIES
        for i, n in enumerate(point["n"])
    ]


SLACK = 0.05
"""Of exponents at these finite lengths against L → ∞."""
ALLOWED = 5.0
ERRORS = f"Rms errors have heavy tails where H is large, so {ALLOWED:g} standard errors are allowed over all horizons and lengths."
NOTE = (
    "The published bounds have unspecified constants, ln L/L^(c/σ²) for outputs and ln² L for gradients in A, so what can be "
    "tested is that the errors vanish, and more slowly for scores that spread more. Exponents are of the rms error; L^(−1/2) is ours, for L → ∞, "
    "and close to H² = ½ it is reached at lengths far beyond these."
)
RESULTS = (
    Reproduction(
        name=SPEC,
        title="Outputs and gradients over prompts of L tokens against the infinite prompt",
        claim="Outputs and gradients of softmax attention concentrate around the infinite-prompt ones, at a power of L that falls with the spread of the scores.",
        source="boursier2026softmax",
        figure=figure,
        verdicts=verdicts,
        specs=(SPEC,),
        table=table,
    ),
)
