"""The kinds of study and the law that reproductions brought: against closed forms, and chunk by chunk."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from attnlimit import Gaussian, Own, measure_convergence, phase_diagram
from attnlimit.errors import InputError
from attnlimit.measures.signs import Signs
from attnlimit.studies.kind import kind


@pytest.mark.parametrize("count", [1, 2, 9, 100])
def test_sums_of_signs_are_binomial(count):
    law = Signs(count)
    up = np.arange(count + 1)
    np.testing.assert_allclose(law.probabilities, stats.binom.pmf(up, count, 0.5), rtol=1e-10)
    assert law.radius == pytest.approx(math.sqrt(count))
    assert float(law.covariance) == pytest.approx(1.0)
    a = torch.tensor([[0.7]], dtype=torch.float64)
    assert float(law.cgf(a)) == pytest.approx(count * math.log(math.cosh(0.7 / math.sqrt(count))))


def test_phase_rows_are_the_diagram():
    found = kind("phase")
    what = found.model_validate({"law": {"name": "gaussian", "dim": 1}, "kappa": [1.0, 3.0], "n": [1, 100]})
    result = found.run(what, 1, 0, None)
    diagram = phase_diagram(Gaussian(dim=1), [1.0, 3.0], [1, 100])
    rows = list(result.rows())
    assert [row[2] for row in rows] == pytest.approx(diagram.relative_rms.flatten().tolist())
    assert rows[0][2] == pytest.approx(1.0)  # one Gaussian key against its own spread
    assert len(rows[0]) == len(found.result.columns)


def hardmax(rule, dim=3, n=(10, 1000, 10**6)):
    found = kind("hardmax")
    what = found.model_validate({"dim": dim, "kappa": rule, "n": list(n)})
    result = found.run(what, 1, 0, None)
    assert all(len(row) == len(found.result.columns) for row in result.rows())
    return result.summary()


def test_hardmax_on_the_sphere_of_three_dimensions():
    """Heights are uniform on [−1, 1] there, so E‖y_max − y*‖² = 2(1 − E max) = 4/(n + 1)."""
    found = hardmax("infinite")
    assert found["rms"] == pytest.approx([math.sqrt(4 / (n + 1)) for n in found["n"]])


def test_the_best_kappa_is_better_than_both_rules():
    best, log, hard = (hardmax(rule, dim=5, n=[1000, 10**6]) for rule in ("best", "log", "infinite"))
    assert all(b < min(x, y) for b, x, y in zip(best["rms"], log["rms"], hard["rms"], strict=True))
    assert log["kappa_at_n"] == pytest.approx([math.log(1000), math.log(10**6)])


def test_concentration_of_chunks_is_that_of_all_and_meets_the_exact_curve():
    found = kind("concentration")
    setting = {
        "law": {"name": "gaussian", "dim": 2},
        "head": {"name": "identity", "horizon": 0.5},
        "n": [20, 80, 320],
    }
    what = found.model_validate({**setting, "queries": 32})
    parts = [found.run(what, 40, seed, None) for seed in (1, 2)]
    told = found.result.joined(parts).summary()
    assert told["replicates"] == 80
    rows = [row for part in parts for row in part.rows()]
    assert len(rows) == 2 * 40 * 3 * 3
    square = np.mean([row[4] for row in rows if row[1] == "A" and row[2] == 80])
    assert told["A"]["rms"][1] == pytest.approx(math.sqrt(square))
    for rms, error, exact in zip(
        told["output"]["rms"], told["output"]["rms_standard_error"], told["exact_output_rms"], strict=True
    ):
        assert abs(rms - exact) < 4.5 * error  # about 1 in 50,000 by chance over the three sizes


GAUSSIAN = {
    "law": {"name": "gaussian", "dim": 4, "cov": 0.5},
    "head": {"name": "random", "horizon": 0.8},
    "n": [50, 200, 800],
    "queries": 32,
}


@pytest.mark.parametrize("replicates", [4, 12])
def test_both_moments_at_once_are_those_measured_one_at_a_time(replicates):
    """From the same generator, with the control (from 8 replicates on) and without it."""
    found = kind("output_moments")
    what = found.model_validate(GAUSSIAN)
    result = found.run(what, replicates, 3, None)
    head, law = what.build()
    for name in ("mean", "covariance"):
        alone = measure_convergence(
            head,
            law,
            what.n,
            statistic=name,
            replicates=replicates,
            queries=Own(32),
            generator=3,
        )
        np.testing.assert_allclose(
            getattr(result, name).experiment.squares, alone.squares, rtol=1e-9, atol=1e-15
        )
    assert len(list(result.rows())) == 2 * replicates * 3


def test_the_precision_of_both_slopes_counts_in_their_units():
    found = kind("output_moments")
    what = found.model_validate(GAUSSIAN)
    results = [found.run(what, 20, seed, None) for seed in (1, 2)]
    joined = found.result.joined(results)
    told = joined.summary()
    halves = {name: np.diff(told[name]["fit"]["interval"])[0] / 2 for name in ("mean", "covariance")}
    assert found.half_width(what, joined, "slope", 0.95) == pytest.approx(max(halves.values()))
    fine = found.model_validate({**GAUSSIAN, "unit": {"mean": halves["mean"], "covariance": 100.0}})
    assert found.half_width(fine, joined, "slope", 0.95) == pytest.approx(1.0)
    with pytest.raises(InputError, match="has a precision of: slope"):
        found.half_width(what, joined, "error", 0.95)


def test_both_moments_are_for_gaussian_tokens():
    found = kind("output_moments")
    what = found.model_validate({**GAUSSIAN, "law": {"name": "sphere", "dim": 4}})
    with pytest.raises(InputError, match="Kind output_moments is for Gaussian tokens, got Sphere"):
        found.check(what)
