"""The phase diagram: its errors, its lines, and what the phases mean."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq

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
        torch.testing.assert_close(diagram.log_n_reached, s2 / 2)


def test_a_shift_of_all_tokens_changes_nothing() -> None:
    """Scores of mean far from zero: softmax does not see it, so neither do the errors nor the lines."""
    plain = phase_diagram(al.Gaussian(dim=2), [0.5, 3.0], [10, 1000])
    moved = phase_diagram(al.Gaussian([5.0, -1.0]), [0.5, 3.0], [10, 1000])
    for name in ("relative_rms", "scale", "log_n_averaging", "log_n_reached"):
        torch.testing.assert_close(getattr(moved, name), getattr(plain, name), rtol=1e-6, atol=1e-9)
    assert moved.region == plain.region


def test_the_sphere_has_lines_of_its_own() -> None:
    """Median of the tilted height by quadrature; scores of standard deviation κ are κ√d c."""
    dim, kappa = 7, 1.7
    diagram = phase_diagram(al.Sphere(dim, radius=3.0), kappa, [100])
    for sharp, line in ((kappa, diagram.log_n_reached), (2 * kappa, diagram.log_n_averaging)):
        r = sharp * math.sqrt(dim)
        plain = [quad(lambda c: (1 - c * c) ** ((dim - 3) / 2), -1, 1)[0]]

        def tilted(end: float, r: float = r) -> float:
            return quad(lambda c: math.exp(r * (c - 1)) * (1 - c * c) ** ((dim - 3) / 2), -1, end)[0]

        median = brentq(lambda c: tilted(c) - 0.5 * tilted(1), -1, 1)
        cgf = r + math.log(tilted(1) / plain[0])
        assert float(line) == pytest.approx(r * median - cgf, abs=2e-3)
    assert float(diagram.scale) == pytest.approx(3.0)


def rare(share: float) -> tuple[al.Measure, float]:
    """Two keys of scores 0 and κ, the second of mass 1e-8 with this share of the attention: κ, in standard deviations."""
    mass = 1e-8
    gap = math.log(share / (1 - share) * (1 - mass) / mass)
    keys = al.Empirical([[0.0], [1.0]], weights=[1 - mass, mass])
    return keys, gap * math.sqrt(mass * (1 - mass))


@pytest.mark.parametrize(("share", "line"), [(0.4, math.log(0.6)), (0.6, math.log(0.6e8))])
def test_a_rare_key_is_reached_by_coverage_and_not_by_relative_entropy(share: float, line: float) -> None:
    """A key of mass 1e-8 with about half the attention: relative entropy says e^{7 to 11} keys either way. With 0.4 of it the
    other key is the larger half, which one draw reaches; with 0.6 nothing is reached before 0.6e8 draws: the error of
    10⁶ keys is still that of never seeing it, and largest weights are 1/n, not 1."""
    law, kappa = rare(share)
    diagram = phase_diagram(law, kappa, [10**6, 10**10])
    assert float(diagram.log_n_reached) == pytest.approx(line, abs=1e-6)
    entropy = share * math.log(share / 1e-8) + (1 - share) * math.log(1 - share)
    assert abs(line - entropy) > 5
    never_seen, rms = share, diagram.relative_rms[0] * diagram.scale
    assert float(rms[0]) == pytest.approx(never_seen, rel=0.01)
    assert float(rms[1]) < 0.15 * never_seen


def test_mixtures_cover_part_by_part() -> None:
    """A narrow Gaussian of mass 1e-8 far out in place of the key; and a mixture of equal parts is the part."""
    mass, far, share = 1e-8, 20.0, 0.7
    a = math.log(share / (1 - share) / mass) / far
    law = al.Mixture([1 - mass, mass], [al.Gaussian(cov=1e-6, dim=1), al.Gaussian([far], cov=1e-6)])
    unit = float(law.covariance[0, 0].sqrt())
    line = float(phase_diagram(law, a * unit, [10]).log_n_reached)
    assert line == pytest.approx(math.log(share / mass), abs=0.1)
    alike = al.Mixture([0.3, 0.7], [al.Gaussian(dim=1), al.Gaussian(dim=1)])
    assert float(phase_diagram(alike, 3.0, [10]).log_n_reached) == pytest.approx(4.5)


def largest_weight(s: float, n: int) -> float:
    """E max p of n scores sg: ∫∫ n w e^{−tw} P(…)^{n−1} dt over the largest score, the others below it, on a grid."""
    g = np.linspace(-9, 12, 4001)
    mass = np.exp(-g * g / 2) / math.sqrt(2 * math.pi) * (g[1] - g[0])
    found = 0.0
    for tau in np.arange(-9 * s - 5, 9 * s + 5, 0.1):
        log_tw = np.minimum(tau + s * g, 50)
        alive = np.exp(-np.exp(log_tw))
        missing = 1 - np.cumsum(mass * alive) + mass * alive / 2
        found += 0.1 * float(
            n * mass @ (np.exp(log_tw + (n - 1) * np.log(np.clip(1 - missing, 1e-300, 1))) * alive)
        )
    return found


@pytest.mark.parametrize(("n", "weight"), [(100, 0.4446), (10**4, 0.3526), (10**6, 0.3074)])
def test_on_the_second_line_the_largest_weight_falls_slowly(n: int, weight: float) -> None:
    """Gaussian scores with s² = 2 log n; by quadrature, and by brute force (standard errors 0.0015 and 0.0047: five of them)."""
    s = math.sqrt(2 * math.log(n))
    assert largest_weight(s, n) == pytest.approx(weight, abs=5e-4)
    if n < 10**6:
        count = 20_000 if n == 100 else 2_000
        draws = torch.randn(count, n, generator=torch.Generator().manual_seed(0))
        largest = (s * draws).softmax(1).amax(1)
        assert float(largest.mean()) == pytest.approx(weight, abs=5 * float(largest.std()) / count**0.5)


@pytest.mark.parametrize("b", [1.5, 2.0, 3.0])
def test_beyond_the_second_line_weights_are_poisson_dirichlet(b: float) -> None:
    """E Σp² tends to 1 − 1/b, s = b√(2 log n), with gaps that fall like log log n/log n: it is not one key. Values independent of the scores
    have E‖Γ_n − Γ‖² = E Σp²."""
    head, gaps = al.Head([[1.0], [0.0]], [[0.0, 1.0]]), []
    for n in (10**4, 10**8, 10**12):
        s = b * math.sqrt(2 * math.log(n))
        square = float(exact_error(head, al.Gaussian(dim=2), [n], [[s]]).mean_square)
        gaps.append(square - (1 - 1 / b))
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] < 0.44 * gaps[0]  # log log n/log n falls to a half, 1/log n to a third


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
def test_at_a_tenth_of_the_second_line_one_key_leads(law: al.Measure, kappa: float) -> None:
    """By 5 standard errors: 0.65 or more is seen there, a half is the claim."""
    n = max(2, round(0.1 * math.exp(float(phase_diagram(law, kappa, [1]).log_n_reached))))
    assert phase_diagram(law, kappa, [n]).region == [["not reached"]]
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
    density, order = (weights * len(weights)).log().sort()
    median = density[(weights[order].cumsum(0) < 0.5).sum()]
    torch.testing.assert_close(
        diagram.log_n_reached[1], median, atol=0.1, rtol=0
    )  # scores closer than 0.4 are a grid


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
        ["not reached", "not reached", "few keys", "averaging"],
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
