"""Verdicts of every reproduction: on data made to agree with the claim, and on data made not to."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnlimit import Gaussian, exponents, phase_diagram
from attnlimit.rates import ErrorCurve, PowerFit
from attnlimit.reproduce import Outcome, find
from attnlimit.reproduce.constants import uniform_rows
from attnlimit.sampling import Convergence as Experiment
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.convergence import Convergence, Measured
from attnlimit.studies.kinds.exact import ExactCurves
from attnlimit.studies.kinds.hardmax import Distance
from attnlimit.studies.kinds.output_moments import Moments
from attnlimit.studies.kinds.phase import Plane
from attnlimit.studies.setting import Limit

AGREES, DIFFERS, CANNOT_TELL = Outcome.AGREES, Outcome.DIFFERS, Outcome.CANNOT_TELL


def verdict_of(name, runs, words):
    """The one verdict whose claim holds these words."""
    (found,) = [one for one in find(name).verdicts(runs) if words in one.claim]
    return found


def fit(exponent, half=0.01):
    return PowerFit(
        exponent=exponent,
        interval=(exponent - half, exponent + half),
        level=0.95,
        intercept=0.0,
        residual_rms=0.0,
        n=(10, 100),
        replicates=2,
        method="made",
    )


def measured(statistic, n, errors, relative, H, fitted):
    """Two replicates with these errors, as mean and as rms, and relative standard errors; and a fit that is given."""
    error = torch.tensor(errors, dtype=torch.float64)
    squares = torch.stack([error**2 * (1 - 2 * relative), error**2 * (1 + 2 * relative)])
    norms = torch.stack([error * (1 - relative), error * (1 + relative)])
    made = Experiment(tuple(n), statistic, squares, norms, "made", "limit")
    found = Measured(made, Limit(H, exponents(H)))
    vars(found)["_fitted"] = fitted
    return found


def study(*results):
    return [Point(k, {}, setting(1, [10]), one) for k, one in enumerate(results)]


def setting(count, n):
    what = {"law": {"name": "signs", "count": count}, "head": {"name": "identity", "horizon": 0.5}, "n": n}
    return Convergence.model_validate(what)


# --- sharp rates ----------------------------------------------------------------------------------


def sharp(rms, mean_rms, H=2.0):
    n = [10**k for k in range(3, 13)]
    sizes = torch.tensor(n, dtype=torch.float64)
    curves = [ErrorCurve(tuple(n), sizes**-power) for power in (rms, mean_rms)]
    return study(ExactCurves(*curves, Limit(H, exponents(H))))


def test_sharp_rates_agree_with_curves_of_the_sharp_exponents_alone():
    known = exponents(2.0)
    good = find("sharp-rates").verdicts(sharp(known.rms, known.mean_rms))
    assert [one.outcome for one in good] == [AGREES] * 3
    bad = find("sharp-rates").verdicts(sharp(known.rms - 0.02, known.mean_rms + 0.02))
    assert [one.outcome for one in bad] == [DIFFERS] * 3


# --- phase diagram --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def phases():
    n = [round(10 ** (k / 4)) for k in range(49)]
    kappa = [1.0, 1.5, 2.0, 2.5, 3.0, 3.3, 3.6, 3.8, 4.0, 6.0, 8.0]
    return Plane(phase_diagram(Gaussian(dim=1), kappa, n))


def test_the_exact_phase_diagram_has_its_phases(phases):
    found = find("phase-diagram").verdicts(study(phases))
    assert [one.outcome for one in found] == [AGREES] * 3


def test_errors_that_average_everywhere_have_none(phases):
    """As if the central limit theorem held for all n: it is never left, and no key has the weight."""
    known = phases.diagram
    scale, n = known.scale.numpy()[:, None], np.array(known.n, dtype=float)
    square = np.array(known.kappa)[:, None] ** 2
    rms = np.exp(square / 2) * np.sqrt((1 + square) / n) / scale
    made = study(Plane(replace(known, relative_rms=torch.from_numpy(rms))))
    assert verdict_of("phase-diagram", made, "leaves the central limit").outcome is CANNOT_TELL
    assert verdict_of("phase-diagram", made, "few keys have the weight").outcome is DIFFERS


# --- hardmax --------------------------------------------------------------------------------------


def hardmax(log, best):
    n = [10**k for k in range(3, 13)]
    wiggle = [1 + 0.002 * (-1) ** k for k in range(len(n))]  # a curve that is no law exactly
    made = []
    for rule, law in (("log", log), ("best", best)):
        rms = torch.tensor([law(x) * w for x, w in zip(n, wiggle, strict=True)], dtype=torch.float64)
        made.append(Distance(5, rule, tuple(n), (1.0,) * len(n), rms, "exact"))
    return study(*made)


def test_the_two_laws_on_the_way_to_hardmax_are_told_apart():
    def power(x):
        return x ** (-1 / 3)

    def logarithm(x):
        return 1 / math.log(x)

    ours = [one.outcome for one in find("hardmax-log-rate").verdicts(hardmax(logarithm, power))]
    assert ours == [AGREES, AGREES, DIFFERS, AGREES]
    turned = [one.outcome for one in find("hardmax-log-rate").verdicts(hardmax(power, logarithm))]
    assert turned == [DIFFERS, AGREES, AGREES, DIFFERS]
    slower = hardmax(logarithm, lambda x: 1 / math.log(x) ** 0.5)
    assert verdict_of("hardmax-log-rate", slower, "at most C/log n").outcome is DIFFERS


# --- constants in R -------------------------------------------------------------------------------


def uniform(constant, exponent=0.5):
    """A study with √n·error = constant(R, edge); edge is the limit's at ‖x‖ = R."""
    n = [3000, 10000, 30000]

    def point(count, C):
        found = measured("sup", n, [C / m**0.5 for m in n], 0.01, 0.5, fit(exponent))
        return Point(0, {"law.count": count}, setting(count, n), found)

    counts = [1, 4, 9, 16, 25]
    flat = [point(c, 1.0) for c in counts]
    edges = [row.edge for row in uniform_rows(flat)]
    made = [point(c, constant(c**0.5, edge)) for c, edge in zip(counts, edges, strict=True)]
    return made


def test_the_uniform_constant_grows_as_the_limit_says():
    good = find("uniform-constant").verdicts(uniform(lambda R, edge: edge))
    assert [one.outcome for one in good] == [AGREES] * 4
    flat = find("uniform-constant").verdicts(uniform(lambda R, edge: R, exponent=0.3))
    assert [one.outcome for one in flat] == [DIFFERS, AGREES, DIFFERS, DIFFERS]
    above = uniform(lambda R, edge: 1e3 * edge)
    assert verdict_of("uniform-constant", above, "proved bound").outcome is DIFFERS


def test_the_edge_of_the_uniform_constant_by_hand():
    """One sign: tokens ±1, a = ½. D = log(cosh 1/cosh² ½), variance and shift of the tilted laws are those of tanh."""
    row = uniform_rows(uniform(lambda R, edge: edge))[0]
    tilted = 1 - math.tanh(1.0) ** 2 + (math.tanh(1.0) - math.tanh(0.5)) ** 2
    assert row.edge == pytest.approx(math.sqrt(math.cosh(1.0) / math.cosh(0.5) ** 2 * tilted))


def moment(constant):
    n, H = [1000, 10000], 0.5
    power = float(exponents(H).paper)
    points = []
    for count in (2, 4, 9, 16, 25, 49, 100):
        rms = [constant(count**0.5) * m**-power for m in n]
        found = measured("mean", n, rms, 0.02, H, "none")
        points.append(Point(0, {"law.count": count}, setting(count, n), found))
    return points


def test_the_moment_constant_must_not_grow_exponentially():
    good = find("moment-constant").verdicts(moment(lambda R: 0.5 * R**0.2))
    assert [one.outcome for one in good] == [AGREES] * 2
    bad = find("moment-constant").verdicts(moment(lambda R: math.exp(0.097 * R**2)))
    assert [one.outcome for one in bad] == [DIFFERS] * 2


# --- Gaussian and sphere --------------------------------------------------------------------------


def slopes(exponent, half=0.01, horizons=(0.2, 0.6, 1.0, 1.5)):
    n = [1000, 3000, 10000]
    made = [
        measured(statistic, n, [m ** -exponent(H) for m in n], 0.01, H, fit(exponent(H), half))
        for statistic in ("mean", "covariance")
        for H in horizons
    ]
    return study(*made)


def paper(H):
    return float(exponents(H).paper)


@pytest.mark.parametrize(
    ("exponent", "half", "expected"),
    [
        (paper, 0.01, [CANNOT_TELL, AGREES, AGREES]),
        (lambda H: paper(H) + 0.1, 0.01, [AGREES, DIFFERS, AGREES]),
        (lambda H: paper(H) - 0.1, 0.01, [DIFFERS, DIFFERS, AGREES]),
        (lambda H: 0.5, 0.01, [AGREES, DIFFERS, CANNOT_TELL]),
        (lambda H: 0.3 + 0.1 * H, 0.01, [DIFFERS, DIFFERS, DIFFERS]),
        (paper, 0.2, [CANNOT_TELL, AGREES, AGREES]),
    ],
)
def test_gaussian_slopes(exponent, half, expected):
    found = find("gaussian").verdicts(slopes(exponent, half))
    assert [one.outcome for one in found] == 2 * expected


def test_sphere_slopes_are_a_half():
    good = find("sphere").verdicts(slopes(lambda H: 0.5))
    assert {one.outcome for one in good} == {AGREES}
    bad = find("sphere").verdicts(slopes(lambda H: 0.4))
    assert [one.outcome for one in bad if "n^(−1/2)" in one.claim] == [DIFFERS] * 8
    wide = find("sphere").verdicts(slopes(lambda H: 0.5, half=0.1))
    assert [one.outcome for one in wide if "n^(−1/2)" in one.claim] == [CANNOT_TELL] * 8


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "runs", "axes"),
    [
        ("sharp-rates", sharp(0.2, 0.3), 2),
        ("hardmax-log-rate", hardmax(lambda x: 1 / math.log(x), lambda x: x**-0.3), 1),
        ("uniform-constant", uniform(lambda R, edge: edge), 1),
        ("moment-constant", moment(lambda R: R), 1),
        ("gaussian", slopes(paper), 3),
        ("sphere", slopes(paper), 3),
    ],
)
def test_figures_have_their_panels_and_names(name, runs, axes):
    figure = find(name).figure(runs)
    assert len(figure.axes) == axes
    assert all(ax.get_xlabel() for ax in figure.axes)
    figure.canvas.draw()


def test_the_phase_figure(phases):
    figure = find("phase-diagram").figure(study(phases))
    assert "number of keys" in figure.axes[0].get_ylabel()


def test_points_with_both_moments_are_read_as_two():
    apart = slopes(paper)
    made = [point.result for point in apart]
    mean, covariance = made[: len(made) // 2], made[len(made) // 2 :]
    joint = [Moments(one, other) for one, other in zip(mean, covariance, strict=True)]
    together = study(*joint)
    assert find("gaussian").verdicts(together) == find("gaussian").verdicts(apart)
    rows = find("gaussian").table(together)
    assert len(rows) == 2 * len(joint) * 3
    assert rows[0]["published"] == paper(0.2)
