"""The phase figure shows what the diagram holds."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

import attnlimit as al
from attnlimit.exact import PhaseDiagram, phase_diagram
from attnlimit.report.figures.phase import phase_figure
from attnlimit.report.figures.style import save

KAPPA = np.linspace(0.1, 6, 13)
SIZES = [10**k for k in range(9)]


@pytest.fixture(scope="module")
def diagram() -> PhaseDiagram:
    return phase_diagram(al.Gaussian(dim=1), KAPPA, SIZES)


def test_both_lines_are_drawn_where_they_are(diagram: PhaseDiagram) -> None:
    ax = phase_figure(diagram).axes[0]
    clt, one = ax.get_lines()[:2]
    np.testing.assert_allclose(clt.get_xdata(), KAPPA)
    np.testing.assert_allclose(np.log(clt.get_ydata()), 2 * KAPPA**2)
    np.testing.assert_allclose(np.log(one.get_ydata()), KAPPA**2 / 2)
    assert clt.get_label() == "central limit theorem ends: s² = ½ log n"
    assert one.get_label() == "the limit is reached: s² = 2 log n"


def test_colours_are_the_errors_in_decades(diagram: PhaseDiagram) -> None:
    ax = phase_figure(diagram).axes[0]
    colours = np.asarray(ax.collections[0].get_array()).reshape(len(SIZES), len(KAPPA))
    np.testing.assert_allclose(10**colours, diagram.relative_rms.numpy().T, rtol=1e-12)


def test_axes_say_what_they_are(diagram: PhaseDiagram) -> None:
    figure = phase_figure(diagram)
    ax, bar = figure.axes
    assert ax.get_xlabel() == "κ: standard deviation of the scores, s"
    assert ax.get_ylabel() == "n: number of keys"
    assert ax.get_yscale() == "log"
    assert bar.get_ylabel().startswith("log₁₀ (rms error")
    assert "Gaussian(dim=1" in ax.get_title(loc="left")
    assert "exact" in ax.get_title(loc="left")


def phase_names(ax: Axes) -> dict[str, tuple[float, float]]:
    return {text.get_text(): text.get_position() for text in ax.texts}


def test_names_stand_in_their_phases(diagram: PhaseDiagram) -> None:
    names = phase_names(phase_figure(diagram).axes[0])
    assert set(names) == {"averaging", "few keys", "not reached"}
    for name, (kappa, n) in names.items():
        there = phase_diagram(al.Gaussian(dim=1), [kappa], [round(n)])
        assert there.region == [[name]]


def test_only_phases_that_are_there_are_named() -> None:
    flat = phase_diagram(al.Sphere(3), [0.1, 0.2], [10, 100, 1000])
    ax = phase_figure(flat).axes[0]
    assert set(phase_names(ax)) == {"averaging"}
    assert ax.get_lines()[0].get_label() == "central limit theorem ends"  # no Gaussian formula on a sphere


def test_it_can_be_written(diagram: PhaseDiagram) -> None:
    path = save(phase_figure(diagram), Path("figures/phase.png"))
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_single_row_is_refused() -> None:
    thin = phase_diagram(al.Gaussian(dim=1), [1.0], [10, 100])
    with pytest.raises(al.InputError, match="at least 2 values of κ and of n, got 1 and 2"):
        phase_figure(thin)
