"""Verdicts on in-context training and on gradients: on data made to agree with the claims, and on data made not to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from attnlimit import exponents
from attnlimit.icl import LinearRegression, ar1, infinite_risk, tuned
from attnlimit.icl.training import MEASURED
from attnlimit.rates import ErrorCurve, PowerFit
from attnlimit.reproduce import Outcome, find
from attnlimit.reproduce.icl import steepest
from attnlimit.sampling import Convergence
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.concentration import Concentrated, Concentration
from attnlimit.studies.kinds.icl import ARRAYS, Asked, Trained
from attnlimit.studies.setting import Limit

AGREES, DIFFERS, CANNOT_TELL = Outcome.AGREES, Outcome.DIFFERS, Outcome.CANNOT_TELL
LENGTHS = [10, 30, 100, 300]
WHAT = {
    "task": {"dim": 3, "noise": 0.1, "rho": 0.5},
    "lengths": LENGTHS,
    "optimizer": {"steps": 100, "lr": 0.01},
    "evaluation": {"reports": [10]},
}
TASK = LinearRegression(3, ar1(3, 0.5), noise=0.1)
SEEDS = torch.tensor([0.98, 1.0, 1.02], dtype=torch.float64)


def along(power: float) -> Trained:
    """Three replicates, three reports; everything falls like L^−power."""
    falls = torch.tensor(LENGTHS, dtype=torch.float64) ** -power
    rows = (SEEDS[:, None] * falls).expand(3, 3, 4)
    times = torch.tensor([0.0, 0.1, 1.0], dtype=torch.float64)
    none = rows.new_zeros(3, 3, 4, 4, 4)
    found = (times, none, none, rows, rows, rows, rows, rows[..., 0], rows, none[..., :0, 0])
    return Trained(Asked.model_validate(WHAT), dict(zip(ARRAYS, found, strict=True)))


@cache
def predicted(attention: str) -> list[float]:
    return [tuned(TASK, L, attention)[1] for L in LENGTHS]


def ended(attention: str, factor: Callable[[float], float] = lambda L: 1.0) -> Trained:
    """The same with risks at the end that are `factor` times those predicted."""
    risks = [factor(L) * risk for L, risk in zip(LENGTHS, predicted(attention), strict=True)]
    exact = torch.tensor(risks, dtype=torch.float64)
    spread = torch.tensor([0.998, 1.0, 1.002], dtype=torch.float64)
    made = along(1.0)
    return replace(made, arrays=made.arrays | {"risk": (spread[:, None] * exact).expand(3, 3, 4)})


def regression(softmax: Trained, linear: Trained) -> list:
    made = []
    for index, (name, one) in enumerate((("softmax", softmax), ("linear", linear))):
        what = one.what.model_copy(update={"attention": name})
        varies = {"task.rho": 0.5, "attention": name}
        made.append(Point(index, varies, what, replace(one, what=what)))
    return made


def test_the_price_of_one_head_and_of_two() -> None:
    """Trained risks made from the exact ones: as they should be; two heads that pay what one does; and another risk than their weights'."""
    length, task = 40, {"dim": 5, "noise": 0.1}
    built = LinearRegression(5, noise=0.1)
    found = {name: tuned(built, length, name) for name in ("softmax", "opposite", "linear")}

    def points(**risks: float) -> list:
        made = []
        for index, (name, (block, risk)) in enumerate(found.items()):
            what = Asked.model_validate({**WHAT, "task": task, "lengths": [length], "attention": name})
            U, V = (part.expand(3, 3, 1, 6, 6) for part in block.embed())
            values = risks.get(name, risk) * torch.tensor([0.999, 1.0, 1.001], dtype=torch.float64)
            rest = {part: values[:, None].expand(3, 3, 1) for part in ("risk", *MEASURED) if part in ARRAYS}
            nothing = {"times": None, "flow_risk": None, "parameter_gap": None, "test_risk": U[..., :0, 0]}
            made.append(
                Point(index, {"attention": name}, what, Trained(what, {**rest, **nothing, "U": U, "V": V}))
            )
        return made

    result = find("two-heads")
    assert [one.outcome for one in result.verdicts(points())] == [AGREES] * 4
    as_one = points(opposite=found["softmax"][1])
    assert [one.outcome for one in result.verdicts(as_one)] == [AGREES, AGREES, DIFFERS, DIFFERS]
    assert len(result.figure(as_one).axes) == 2
    assert len(result.table(as_one)) > 0


def verdict_of(name: str, runs: list, words: str):
    (found,) = [one for one in find(name).verdicts(runs) if words in one.claim]
    return found


def test_risks_as_predicted_and_risks_that_are_not() -> None:
    good = regression(ended("softmax"), ended("linear"))
    assert [one.outcome for one in find("icl-risk").verdicts(good)] == [AGREES] * 6
    apart = regression(ended("softmax", lambda L: 1.1), ended("linear", lambda L: 0.9))
    claims = [one.outcome for one in find("icl-risk").verdicts(apart) if one.claim.startswith("ours")]
    assert claims == [DIFFERS] * 2
    slow = regression(ended("softmax", lambda L: L**0.3), ended("linear"))
    assert verdict_of("icl-risk", slow, "vanishes").outcome is DIFFERS
    assert verdict_of("icl-risk", slow, "becomes linear").outcome is DIFFERS
    assert verdict_of("icl-risk", slow, "does no worse").outcome is DIFFERS
    turned = regression(ended("linear"), ended("softmax"))
    assert verdict_of("icl-risk", turned, "becomes linear").outcome is CANNOT_TELL
    small = regression(ended("softmax", lambda L: 1e-3), ended("linear"))
    assert verdict_of("icl-risk", small, "ridge regression is the floor").outcome is DIFFERS


def test_gaps_to_the_flow_that_vanish_and_that_do_not() -> None:
    good = regression(along(0.5), along(0.5))
    assert [one.outcome for one in find("icl-trajectory").verdicts(good)] == [AGREES] * 4
    bad = regression(along(-0.3), along(0.5))
    assert [one.outcome for one in find("icl-trajectory").verdicts(bad)] == [DIFFERS] * 4
    made = along(0.5)
    apart = replace(made, arrays=made.arrays | {"parameter_gap": 5 * made.arrays["parameter_gap"]})
    words = "for the theorem's time"
    assert verdict_of("icl-trajectory", regression(apart, along(0.5)), words).outcome is DIFFERS
    soon = regression(along(-2.0), along(0.5))  # the theorem's time is over before the second report
    assert verdict_of("icl-trajectory", soon, words).outcome is CANNOT_TELL


def test_the_steepest_slope_is_the_largest_hessian_norm() -> None:
    g = torch.Generator().manual_seed(1)
    weights = 0.5 * torch.randn(3, 2, 4, 4, generator=g, dtype=torch.float64)
    norms = []
    for one in weights:
        found = torch.autograd.functional.hessian(lambda x: infinite_risk(TASK, x[0], x[1]), one)
        norms.append(float(torch.linalg.matrix_norm(found.reshape(32, 32), 2)))
    assert steepest(TASK, weights[:, 0], weights[:, 1]) == pytest.approx(max(norms), rel=1e-3)


def gradients(exponent: Callable[[float], float], off: float = 1.0) -> list:
    """Errors n^−exponent(H), `off` times as large as the exact ones, with a standard error of 2 %."""
    n = (32, 128, 512)
    made = []
    for index, H in enumerate((0.25, 0.5, 1.0)):
        rms = torch.tensor([m ** -exponent(H) for m in n], dtype=torch.float64)
        square = (off * rms) ** 2
        spread = 2 * 0.02 * rms * off * rms  # of two replicates, whose mean has a relative error of 2 %
        squares = torch.stack([square - spread, square + spread])
        what = Concentration.model_validate({"law": {"name": "gaussian", "dim": 2}, "head": {"name": "random", "horizon": H}, "n": list(n)})  # fmt: skip
        fit = PowerFit(exponent=exponent(H), interval=(exponent(H) - 0.01, exponent(H) + 0.01), level=0.95, intercept=0.0,
                       residual_rms=0.0, n=n, replicates=2, method="made")  # fmt: skip
        quantities = ("output", "A", "V")
        made_of = {
            name: Convergence(n, name, squares, squares.sqrt(), "made", "limit") for name in quantities
        }
        found = Concentrated(what, made_of)
        vars(found).update(
            fits=dict.fromkeys(quantities, fit), exact=ErrorCurve(n, rms), limit=Limit(H, exponents(H))
        )
        made.append(Point(index, {"head.horizon": H}, what, found))
    return made


def test_gradients_that_concentrate_and_that_do_not() -> None:
    good = find("gradient-concentration").verdicts(gradients(lambda H: 0.5 - 0.15 * max(0.0, H - 0.5)))
    assert {one.outcome for one in good} == {AGREES}
    bad = find("gradient-concentration").verdicts(gradients(lambda H: -0.1 + 0.3 * H, off=1.5))
    assert {one.outcome for one in bad} == {DIFFERS}


@pytest.mark.parametrize(
    ("name", "runs", "axes"),
    [
        ("icl-risk", regression(along(0.9), along(0.9)), 1),
        ("icl-trajectory", regression(along(0.9), along(0.9)), 2),
        ("gradient-concentration", gradients(lambda H: 0.5), 3),
    ],
)
def test_figures_have_their_panels_and_names(name: str, runs: list, axes: int) -> None:
    figure = find(name).figure(runs)
    assert len(figure.axes) == axes
    assert all(ax.get_xlabel() for ax in figure.axes)
    figure.canvas.draw()


def test_tables_hold_every_report_and_quantity() -> None:
    rows = find("icl-risk").table(regression(along(0.9), along(0.9)))
    assert len(rows) == 2 * 3 * 3 * 4
    assert rows[0]["task"] == "Σ_ij = 0.5^|i−j|"
    assert rows[-1]["risk"] == pytest.approx(1.02 * 300**-0.9)
    rows = find("gradient-concentration").table(gradients(lambda H: 0.5))
    assert len(rows) == 3 * 3 * 3
    assert rows[0]["exact"] == pytest.approx(32**-0.5)
