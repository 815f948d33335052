"""Published: outputs and gradients over prompts of L tokens concentrate around those of the infinite prompt."""

from __future__ import annotations

from attnlimit.report.figures.rates import gradient_concentration_figure
from attnlimit.reproduce.result import Points, Reproduction, Verdict, lines, results
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.concentration import Concentrated

QUANTITIES = {"output": "output", "A": "gradient in A", "V": "gradient in V"}


def _results(points: Points) -> list[Concentrated]:
    """By horizon."""
    return sorted(results(points, Concentrated), key=_horizon)


def _horizon(one: Concentrated) -> float:
    assert one.limit is not None  # a head with a horizon of its own on a Gaussian
    return one.limit.horizon


def verdicts(points: Points) -> list[Verdict]:
    some = _results(points)
    found = [_exact(some)]
    for name in ("A", "V"):
        worst = min(some, key=lambda point: point.fits[name].interval[0])
        fit, H = worst.fits[name], _horizon(worst)
        claim = f"the {QUANTITIES[name]} concentrates at every horizon: least exponent of L, at H = {H:.3g}"
        found.append(Verdict.at_least(claim, 0.0, fit.exponent, fit.interval))
        found.append(_falls(name, some))
    for point in some:
        H, fit = _horizon(point), point.fits["A"]
        if H**2 <= 0.5:
            claim = f"for H² ≤ ½ the gradient in A concentrates like L^(−1/2), H = {H:.3g}"
            found.append(Verdict.equals(claim, 0.5, fit.exponent, fit.interval, slack=SLACK, note=NOTE))
    return found


def _exact(points: list[Concentrated]) -> Verdict:
    """The largest difference of sampled and exact rms outputs, in standard errors, over all points and lengths."""
    scores = []
    for point in points:
        assert point.exact is not None  # a Gaussian's is known
        sampled = point.curves["output"]
        scores.append(float(((sampled.rms - point.exact.error).abs() / sampled.rms_standard_error).max()))
    claim = "sampled output errors are the exact ones: largest difference in standard errors"
    return Verdict.at_most(claim, ALLOWED, max(scores), note=ERRORS)


def _falls(name: str, points: list[Concentrated]) -> Verdict:
    claim = f"the exponent of the {QUANTITIES[name]} falls as scores spread, H = {_horizon(points[0]):.3g} to {_horizon(points[-1]):.3g}"
    return Verdict.falls(claim, points[0].fits[name], points[-1].fits[name])


def table(points: Points) -> list[Row]:
    rows: list[Row] = []
    for point in _results(points):
        exact = None if point.exact is None else point.exact.error
        for name in QUANTITIES:
            curve, beside = point.curves[name], exact if name == "output" else None
            columns = {"rms": curve.rms, "rms_standard_error": curve.rms_standard_error, "exact": beside}
            rows += lines({"horizon": _horizon(point), "quantity": name}, {"n": point.n}, **columns)
    return rows


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
        name="gradient-concentration",
        title="Outputs and gradients over prompts of L tokens against the infinite prompt",
        claim="Outputs and gradients of softmax attention concentrate around the infinite-prompt ones, at a power of L that falls with the spread of the scores.",
        source="boursier2026softmax",
        figure=lambda points: gradient_concentration_figure(_results(points), QUANTITIES),
        verdicts=verdicts,
        table=table,
    ),
)
