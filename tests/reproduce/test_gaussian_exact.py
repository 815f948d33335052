"""Verdicts of the Gaussian experiment without sampling: on samples made to agree, and made not to."""

import pytest
import torch

from attnlimit import exponents
from attnlimit.rates import ErrorCurve
from attnlimit.reproduce import Outcome, find
from attnlimit.reproduce import exact as exact_results
from attnlimit.sampling import Convergence as Experiment
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.convergence import Convergence, Measured
from attnlimit.studies.setting import Limit

N = (100, 1000)


@pytest.fixture
def exact(monkeypatch):
    curve = ErrorCurve(N, torch.tensor([0.1, 0.032], dtype=torch.float64))
    monkeypatch.setattr(exact_results, "exact", lambda what: curve)
    return curve


def points(curve, factor, noise):
    """60 replicates of squares around factor times the exact ones."""
    g = torch.Generator().manual_seed(1)
    squares = curve.error.square() * (factor + noise * torch.randn(60, 2, generator=g, dtype=torch.float64))
    what = {"law": {"name": "gaussian", "dim": 2}, "head": {"name": "identity", "horizon": 0.5}, "n": list(N)}
    made = Experiment(N, "mean", squares, None, "made", "limit")
    return [Point(0, {}, Convergence.model_validate(what), Measured(made, Limit(0.5, exponents(0.5))))]


@pytest.mark.parametrize(
    ("factor", "noise", "expected"),
    [
        (1.0, 0.2, Outcome.AGREES),
        (1.2, 0.2, Outcome.DIFFERS),
        (0.8, 0.2, Outcome.DIFFERS),
        (1.0, 3.0, Outcome.CANNOT_TELL),
    ],
)
def test_samples_beside_the_exact_error(exact, factor, noise, expected):
    sampled, published = find("gaussian-exact").verdicts(points(exact, factor, noise))
    assert sampled.outcome is expected
    assert published.outcome is Outcome.AGREES


def test_the_figure_and_the_table(exact):
    made = points(exact, 1.0, 0.2)
    figure = find("gaussian-exact").figure(made)
    assert figure.axes[0].get_xlabel() == "tokens n"
    rows = find("gaussian-exact").table(made)
    assert [row["n"] for row in rows] == list(N)
    assert [row["exact"] for row in rows] == [0.1, 0.032]  # to the last bit
