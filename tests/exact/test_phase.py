"""The phase diagram: its errors, its lines, and what the phases mean."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

import attnlimit as al
from attnlimit.exact import exact_error, phase_diagram

DOUBLE = torch.float64


def test_errors_are_those_of_the_theory_over_the_attended_size() -> None:
    """Gaussian in R¹ and R²: the mean square vectors of the theory over s² + d."""
    sizes = [1, 2, 10, 100, 10**3, 10**4, 10**6, 10**9]
    along = torch.tensor(
        [
            [1.25, 0.659682, 0.149713, 0.0159131, 0.00160362, 0.000160489, 1.60503e-6, 1.60503e-9],
            [5, 3.01684, 0.999203, 0.260357, 0.0792765, 0.0174555, 2.68528e-4, 2.72985e-7],
        ],
        dtype=DOUBLE,
    )
    across = torch.tensor(
        [
            [1, 0.550753, 0.123368, 0.0127839, 0.00128345, 0.000128397, 1.28402e-6, 1.28403e-9],
            [1, 0.759988, 0.390120, 0.126262, 0.0290343, 0.00450745, 5.43149e-5, 5.45978e-8],
        ],
        dtype=DOUBLE,
    )
    s2 = torch.tensor([[0.25], [4.0]], dtype=DOUBLE)
    line = phase_diagram(al.Gaussian(dim=1), [0.5, 2.0], sizes)
    plane = phase_diagram(al.Gaussian(dim=2), [0.5, 2.0], sizes)
    torch.testing.assert_close(line.relative_rms.square(), along / (s2 + 1), rtol=1e-5, atol=0)
    torch.testing.assert_close(plane.relative_rms.square(), (along + across) / (s2 + 2), rtol=1e-5, atol=0)
    torch.testing.assert_close(line.scale.square(), s2[:, 0] + 1)
    torch.testing.assert_close(line.relative_rms[:, 0], torch.ones(2, dtype=DOUBLE))


def test_gaussian_lines_are_those_of_the_random_energy_model() -> None:
    """s² = ½ log n and s² = 2 log n, for any Gaussian and direction."""
    kappa = np.linspace(0.1, 6, 9)
    s2 = torch.as_tensor(kappa) ** 2
    cov = torch.tensor([[2.0, 0.3], [0.3, 0.5]], dtype=DOUBLE)
    for law, direction in ((al.Gaussian(dim=1), None), (al.Gaussian([0.0, 3.0], cov), [1.0, -2.0])):
        diagram = phase_diagram(law, kappa, [10], direction=direction)
        torch.testing.assert_close(diagram.log_n_averaging, 2 * s2)
        torch.testing.assert_close(diagram.log_n_one_key, s2 / 2)


def test_a_shift_of_all_tokens_changes_nothing() -> None:
    """Scores of mean far from zero: softmax does not see it, so neither do the errors nor the lines."""
    plain = phase_diagram(al.Gaussian(dim=2), [0.5, 3.0], [10, 1000])
    moved = phase_diagram(al.Gaussian([5.0, -1.0]), [0.5, 3.0], [10, 1000])
    for name in ("relative_rms", "scale", "log_n_averaging", "log_n_one_key"):
        torch.testing.assert_close(getattr(moved, name), getattr(plain, name), rtol=1e-6, atol=1e-9)
    assert moved.region == plain.region


def test_the_sphere_has_lines_of_its_own() -> None:
    """Relative entropy of the tilted height by quadrature; scores of standard deviation κ are κ√d c."""
    dim, kappa = 7, 1.7
    diagram = phase_diagram(al.Sphere(dim, radius=3.0), kappa, [100])
    for sharp, line in ((kappa, diagram.log_n_one_key), (2 * kappa, diagram.log_n_averaging)):
        r = sharp * math.sqrt(dim)

        def tilted(f: object, r: float = r) -> float:
            return quad(
                lambda c: f(c) * math.exp(r * (c - 1)) * (1 - c * c) ** ((dim - 3) / 2), -1, 1, epsabs=0
            )[0]  # type: ignore[operator]

        mass = quad(lambda c: (1 - c * c) ** ((dim - 3) / 2), -1, 1)[0]
        cgf = r + math.log(tilted(lambda c: 1.0) / mass)
        entropy = r * tilted(lambda c: c) / tilted(lambda c: 1.0) - cgf
        assert float(line) == pytest.approx(entropy, rel=1e-8)
    assert float(diagram.scale) == pytest.approx(3.0)


LAWS = [al.Gaussian(dim=1), al.Sphere(12), al.Sphere(50)]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kappa", [0.5, 2.0, 3.0])
def test_above_the_first_line_the_central_limit_theorem_holds(law: al.Measure, kappa: float) -> None:
    n = math.ceil(1e3 * math.exp(float(phase_diagram(law, kappa, [1]).log_n_averaging)))
    diagram = phase_diagram(law, kappa, [n])
    assert diagram.region == [["averaging"]]
    unit = torch.eye(law.dim, dtype=DOUBLE)[:, :1] / law.covariance[0, 0].sqrt()
    variance = al.clt(al.Head(kappa * unit), law, [[1.0]]).covariance[0].trace()
    error = float(diagram.relative_rms * diagram.scale)
    assert error == pytest.approx(math.sqrt(float(variance) / n), rel=0.05)


def mean_largest_weight(law: al.Measure, kappa: float, n: int) -> float:
    """Of 1,000 samples of n keys: its standard error is below 0.01."""
    y = law.sample(1000 * n, generator=0).tokens[:, 0].reshape(1000, n) / law.covariance[0, 0].sqrt()
    return float(torch.softmax(kappa * y, 1).amax(1).mean())


@pytest.mark.parametrize(
    ("law", "kappa"), [(al.Gaussian(dim=1), 3.0), (al.Sphere(12), 3.0), (al.Sphere(50), 4.0)]
)
def test_below_the_second_line_one_key_leads(law: al.Measure, kappa: float) -> None:
    """By 5 standard errors: 0.65 or more is seen at a tenth of the line, a half is the claim."""
    n = max(2, round(0.1 * math.exp(float(phase_diagram(law, kappa, [1]).log_n_one_key))))
    assert phase_diagram(law, kappa, [n]).region == [["one key"]]
    assert mean_largest_weight(law, kappa, n) > 0.55


@pytest.mark.parametrize(
    ("law", "kappa"), [(al.Gaussian(dim=1), 1.5), (al.Sphere(12), 3.0), (al.Sphere(50), 1.5)]
)
def test_above_the_first_line_no_key_does(law: al.Measure, kappa: float) -> None:
    n = round(10 * math.exp(float(phase_diagram(law, kappa, [1]).log_n_averaging)))
    assert phase_diagram(law, kappa, [n]).region == [["averaging"]]
    assert mean_largest_weight(law, kappa, n) < 0.12


def test_populations_and_their_values() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, values = (torch.randn(300, d, generator=generator, dtype=DOUBLE) for d in (2, 3))
    keys = al.Empirical(tokens, values)
    diagram = phase_diagram(keys, [0.5, 2.0], [1, 30], direction=[0.0, 2.0])
    a = torch.tensor([[0.0], [1.0]], dtype=DOUBLE) / tokens[:, 1].std(correction=0)
    expected = exact_error(al.Head(a), keys, [1, 30], [[0.5], [2.0]])
    torch.testing.assert_close(diagram.relative_rms * diagram.scale[:, None], expected.rms)
    weights = torch.softmax(2.0 * tokens @ a[:, 0], 0)
    size = (weights * (values - values.mean(0)).square().sum(-1)).sum().sqrt()
    torch.testing.assert_close(diagram.scale[1], size)
    entropy = (weights * (weights * len(weights)).log()).sum()
    torch.testing.assert_close(diagram.log_n_one_key[1], entropy)


def test_direction_is_only_a_direction() -> None:
    law = al.Gaussian(cov=[1.0, 4.0])
    one, other = (
        phase_diagram(law, [1.0], [50], direction=d) for d in ([0.0, 1.0], torch.tensor([0.0, 30.0]))
    )
    torch.testing.assert_close(one.relative_rms, other.relative_rms)


def test_regions_and_plain_data() -> None:
    diagram = phase_diagram(al.Gaussian(dim=1), [1.0, 3.0], [2, 10, 10**3, 10**9])
    assert diagram.region == [
        ["few keys", "averaging", "averaging", "averaging"],
        ["one key", "one key", "few keys", "averaging"],
    ]
    assert repr(diagram).startswith("PhaseDiagram(Gaussian(dim=1, scalar covariance), 2 κ × 4 n, exact")
    data = json.loads(json.dumps(diagram.to_dict()))
    assert data["kappa"] == [1.0, 3.0]
    assert data["region"] == diagram.region
    assert "attended values" in data["scale_is"]


def test_refusals() -> None:
    law = al.Gaussian(cov=[1.0, 0.0])
    with pytest.raises(al.InputError, match="kappa must be one or more numbers above 0"):
        phase_diagram(law, [0.0, 1.0], [10])
    with pytest.raises(al.InputError, match=r"beyond 10\^12"):
        phase_diagram(law, [1.0], [10**13])
    with pytest.raises(al.InputError, match="do not vary along this direction"):
        phase_diagram(law, [1.0], [10], direction=[0.0, 1.0])
    with pytest.raises(al.InputError, match=r"direction must have shape \(\*batch, 2\)"):
        phase_diagram(law, [1.0], [10], direction=[1.0, 0.0, 0.0])
    with pytest.raises(al.InputError, match="direction must be one vector of length 2"):
        phase_diagram(law, [1.0], [10], direction=torch.eye(2, dtype=DOUBLE))
    with pytest.raises(al.NotKnown, match="no projected form"):
        phase_diagram(al.Box(2), [1.0], [10], direction=[1.0, 1.0])
