"""Results draw themselves, and a notebook shows the figure."""

from __future__ import annotations

import pickle

import pytest

import attnlimit as al
from attnlimit.errors import InputError
from attnlimit.report.figures import style

HEAD, LAW = al.Head([[0.5]]), al.Gaussian(cov=1.0, dim=1)
RESULTS = {
    "curve": lambda: al.curve(HEAD, LAW, [10, 100]),
    "exact error": lambda: al.exact_error(HEAD, LAW, [10, 100], [[1.0], [2.0]]),
    "exact errors of many": lambda: al.exact_error(HEAD, LAW, [10, 100], [[0.1 * k] for k in range(9)]),
    "convergence": lambda: al.measure_convergence(HEAD, LAW, [10, 40], replicates=4, generator=0),
    "phase diagram": lambda: al.phase_diagram(LAW, kappa=[0.5, 2.0], n=[10, 100]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_draws_itself(name: str) -> None:
    figure = RESULTS[name]().plot()
    ax = figure.axes[0]
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_pickles(name: str) -> None:
    """Results hold arrays only, no closures: they go to another process and come back with the same numbers."""
    result = RESULTS[name]()
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()


def test_only_known_kinds_of_file() -> None:
    figure, _ = style.axes()
    with pytest.raises(InputError, match=r"\.png, \.pdf or \.svg, got 'a\.exe'"):
        style.save(figure, "a.exe")
