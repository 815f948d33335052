"""Every closed form against mpmath, from formulas written here and nowhere in the package."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import mpmath as mp
import pytest
import torch
from torch import Tensor

import attnlimit as al

TOLERANCE = 1e-12  # where the terms that make up the answer do not cancel: no mean of opposite sign, no balance of parts
DIGITS = 60
SIZES = [2.0**k for k in (-27, -20, -13, -7, -3, -1, 0, 1, 2, 3, 5, 8, 13, 20, 27)]  # 1e-8 … 1e8
DIRECTION = (0.75, -0.5, 0.375)  # of length 0.976; scores of dyadic tokens stay exact at every size


@dataclass
class Expected:
    """Λ, and ∇Λ and the entries of ∇²Λ for the listed coordinates."""

    cgf: mp.mpf
    mean: list[mp.mpf]
    cov: list[list[mp.mpf]]


Reference = Callable[[list[mp.mpf], int], Expected]
"""From a vector that is `copies` copies of the given coordinates."""


def diagonal(entries: list[mp.mpf]) -> list[list[mp.mpf]]:
    return [[entry if i == j else mp.mpf(0) for j in range(len(entries))] for i, entry in enumerate(entries)]


def product(coordinate: Callable[[mp.mpf], tuple[mp.mpf, mp.mpf, mp.mpf]]) -> Reference:
    def reference(a: list[mp.mpf], copies: int) -> Expected:
        cgf, mean, variance = zip(*map(coordinate, a), strict=True)
        return Expected(copies * sum(cgf), list(mean), diagonal(list(variance)))

    return reference


def uniform(c: float, a: mp.mpf) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    x = c * a
    return mp.log(mp.sinh(x) / x), c * (mp.coth(x) - 1 / x), c * c * (1 / x**2 - mp.csch(x) ** 2)


def sign(a: mp.mpf) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    return mp.log(mp.cosh(a)), mp.tanh(a), mp.sech(a) ** 2


def laplace(b: float, a: mp.mpf) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """From ∫ e^{ay − |y|/b}/(2b) dy = (1/(1 − ba) + 1/(1 + ba))/2."""
    up, down = 1 / (1 / mp.mpf(b) - a), 1 / (1 / mp.mpf(b) + a)
    return mp.log((up + down) / (2 * b)), up - down, up**2 + down**2


def normal(variance: float, mean: float, a: mp.mpf) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    return mean * a + mp.mpf(variance) / 2 * a**2, mean + variance * a, mp.mpf(variance)


def gaussian(mean: list[float], cov: list[list[float]]) -> Reference:
    def reference(a: list[mp.mpf], copies: int) -> Expected:
        assert copies == 1
        push = [mp.fdot(row, a) for row in cov]
        tilted = [m + p for m, p in zip(mean, push, strict=True)]
        return Expected(mp.fdot(mean, a) + mp.fdot(push, a) / 2, tilted, cov)

    return reference


@cache
def height(rate: mp.mpf, order: int) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """Log-mass, mean and variance of t with density ∝ e^{rate·t}(1 − t²)^{(order−3)/2}, the height of a uniform
    point of the sphere of R^order: trapezoidal rule in u = artanh t, centred on the peak of the integrand."""
    if order == 1:
        return sign(rate)
    power = mp.mpf(order - 1) / 2
    peak = rate / (power + mp.sqrt(power**2 + rate**2))
    step = min(mp.mpf(1) / 20, 1 / (4 * mp.sqrt(2 * (1 - peak**2) * (rate * peak + power))))

    def log_density(u: mp.mpf) -> mp.mpf:
        return rate * mp.tanh(u) - 2 * power * mp.log(mp.cosh(u))

    centre = mp.atanh(peak)
    top, moments = log_density(centre), [mp.mpf(0)] * 3
    for start, direction in ((0, 1), (-1, -1)):
        k = start
        while (drop := log_density(centre + k * step) - top) > -120:
            offset = mp.tanh(centre + k * step) - peak
            moments = [m + mp.exp(drop) * offset**i for i, m in enumerate(moments)]
            k += direction
    shift = moments[1] / moments[0]
    normaliser = mp.log(mp.beta(mp.mpf(1) / 2, power))
    return mp.log(moments[0] * step) + top - normaliser, peak + shift, moments[2] / moments[0] - shift**2


def radial(radius: float, more_dims: int) -> Reference:
    def reference(a: list[mp.mpf], copies: int) -> Expected:
        norm = mp.sqrt(copies * sum(x * x for x in a))
        cgf, mean, variance = height(radius * norm, copies * len(a) + more_dims)
        across, unit = mean / (radius * norm), [x / norm for x in a]
        cov = [
            [radius**2 * (variance * x * y + across * ((i == j) - x * y)) for j, y in enumerate(unit)]
            for i, x in enumerate(unit)
        ]
        return Expected(cgf, [radius * mean * x for x in unit], cov)

    return reference


def mixture(weights: list[float], parts: list[Reference]) -> Reference:
    def reference(a: list[mp.mpf], copies: int) -> Expected:
        at = [part(a, copies) for part in parts]
        masses = [w / mp.fsum(weights) * mp.exp(e.cgf) for w, e in zip(weights, at, strict=True)]
        gates = [mass / mp.fsum(masses) for mass in masses]
        mean = [mp.fdot(gates, column) for column in zip(*(e.mean for e in at), strict=True)]

        def entry(i: int, j: int) -> mp.mpf:
            return mp.fsum(
                g * (e.cov[i][j] + (e.mean[i] - mean[i]) * (e.mean[j] - mean[j]))
                for g, e in zip(gates, at, strict=True)
            )

        cov = [[entry(i, j) for j in range(len(a))] for i in range(len(a))]
        return Expected(mp.log(mp.fsum(masses)), mean, cov)

    return reference


def atoms(tokens: list[list[float]], weights: list[float] | None = None) -> Reference:
    points = [gaussian(token, [[0.0] * len(token)] * len(token)) for token in tokens]
    return mixture(weights or [1.0] * len(tokens), points)


FULL = [[2.0, 0.3, -0.5], [0.3, 1.0, 0.1], [-0.5, 0.1, 0.7]]
SINGULAR = [[0.25, -0.5, 0.75], [-0.5, 1.0, -1.5], [0.75, -1.5, 2.25]]  # v vᵀ, v = (1, −2, 3)/2
MEAN = [0.3, -0.7, 1.1]
TOKENS = [[1.0, 2.0, -0.5], [0.25, -1.5, 1.0], [0.75, 0.5, 2.5], [-1.0, 0.25, 0.125], [1.5, -1.0, 0.5]]
WEIGHTS = [0.5, 0.125, 0.125, 0.0625, 0.1875]

SMALL: dict[str, tuple[al.Measure, Reference]] = {
    "gaussian, scalar": (al.Gaussian(cov=0.3, dim=3), product(partial(normal, 0.3, 0.0))),
    "gaussian, diagonal": (
        al.Gaussian(cov=[2.0, 0.5, 3.0]),
        gaussian([0.0] * 3, [[2.0, 0, 0], [0, 0.5, 0], [0, 0, 3.0]]),
    ),
    "gaussian, full": (al.Gaussian(cov=FULL), gaussian([0.0] * 3, FULL)),
    "gaussian, singular": (al.Gaussian(cov=SINGULAR), gaussian([0.0] * 3, SINGULAR)),
    "gaussian, with a mean": (al.Gaussian(MEAN, FULL), gaussian(MEAN, FULL)),
    "sphere": (al.Sphere(3, radius=1.7), radial(1.7, 0)),
    "ball": (al.Ball(3, radius=0.6), radial(0.6, 2)),
    "box": (al.Box(3, half_width=1.3), product(partial(uniform, 1.3))),
    "rademacher": (al.Rademacher(3), product(sign)),
    "mixture of gaussians": (
        al.Mixture([0.3, 0.7], [al.Gaussian(MEAN, 0.5), al.Gaussian([-1.2, 0.4, 0.9], FULL)]),
        mixture(
            [0.3, 0.7],
            [gaussian(MEAN, [[0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.5]]), gaussian([-1.2, 0.4, 0.9], FULL)],
        ),
    ),
    "mixture of sphere and box": (
        al.Mixture([0.25, 0.75], [al.Sphere(3, radius=2.0), al.Box(3)]),
        mixture([0.25, 0.75], [radial(2.0, 0), product(partial(uniform, 1.0))]),
    ),
    "tokens": (al.Empirical(TOKENS), atoms(TOKENS)),
    "weighted tokens": (al.Empirical(TOKENS, weights=WEIGHTS), atoms(TOKENS, WEIGHTS)),
}


def relative_error(actual: Tensor, expected: object) -> float:
    """max |difference| / max |expected|, over one vector or matrix."""
    flat = [actual] if actual.ndim == 0 else list(actual.reshape(-1))
    wanted = [expected] if actual.ndim == 0 else list(expected)
    scale = max(max(abs(e) for e in wanted), mp.mpf("1e-300"))  # sech² and the like leave float64's range
    return float(max(abs(mp.mpf(v.item()) - e) for v, e in zip(flat, wanted, strict=True)) / scale)


def check(law: al.Measure, a: Tensor, expected: Expected, with_cov: bool = True) -> None:
    mean = law.tilted_mean(a)
    copies = len(a) // len(expected.mean)
    assert torch.equal(mean, mean[: len(expected.mean)].repeat(copies))
    errors = {
        "cgf": relative_error(law.cgf(a), expected.cgf),
        "mean": relative_error(mean[: len(expected.mean)], expected.mean),
    }
    if with_cov:
        errors["cov"] = relative_error(law.tilted_cov(a), [entry for row in expected.cov for entry in row])
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", SIZES)
def test_small_dimension(name: str, size: float) -> None:
    law, reference = SMALL[name]
    a = torch.tensor(DIRECTION, dtype=torch.float64) * size
    with mp.workdps(DIGITS):
        check(law, a, reference([mp.mpf(x) for x in a.tolist()], 1))


PATTERN = (0.5, -1.0, 0.25, 0.0625)
LARGE: dict[str, tuple[Callable[[int], al.Measure], Reference]] = {
    "gaussian, scalar": (
        lambda d: al.Gaussian(torch.full((d,), 0.3, dtype=torch.float64), 0.7),
        product(lambda a: normal(0.7, 0.3, a)),
    ),
    "gaussian, diagonal": (
        lambda d: al.Gaussian(cov=torch.full((d,), 0.7, dtype=torch.float64)),
        product(lambda a: normal(0.7, 0.0, a)),
    ),
    "sphere": (lambda d: al.Sphere(d, radius=1.7), radial(1.7, 0)),
    "ball": (lambda d: al.Ball(d, radius=0.6), radial(0.6, 2)),
    "box": (lambda d: al.Box(d, half_width=1.3), product(partial(uniform, 1.3))),
    "rademacher": (al.Rademacher, product(sign)),
    "mixture": (
        lambda d: al.Mixture([0.5, 0.5], [al.Gaussian(cov=1.0, dim=d), al.Gaussian(cov=0.25, dim=d)]),
        mixture([0.5, 0.5], [product(partial(normal, 1.0, 0.0)), product(partial(normal, 0.25, 0.0))]),
    ),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dim", [1, 2, 64, 768, 100_000])
@pytest.mark.parametrize("norm", [1e-8, 1e-4, 1.0, 30.0, 1e4, 1e8])
def test_large_dimension(name: str, dim: int, norm: float) -> None:
    make, reference = LARGE[name]
    pattern = torch.tensor(PATTERN[: min(dim, 4)], dtype=torch.float64)
    a = pattern.repeat(dim // len(pattern))
    a = a * (norm / float(a.norm()))
    with mp.workdps(DIGITS):
        expected = reference([mp.mpf(x) for x in a[: len(pattern)].tolist()], dim // len(pattern))
        check(make(dim), a, expected, with_cov=dim == 1)


EDGE = [
    1 - 2.0**-20,
    1 - 2.0**-40,
]  # for scales whose inverse is a float, so that the distance to the edge is too


@pytest.mark.parametrize(
    ("scale", "depth"),
    [
        (scale, depth)
        for scale in (1.0, 0.5, 3.0)
        for depth in (1e-8, 1e-3, 0.3, 0.499, 0.501, 0.9, *(EDGE if scale < 3 else []))
    ],
)
@pytest.mark.parametrize("dim", [1, 100_000])
def test_laplace_inside_its_domain_and_near_its_edge(scale: float, depth: float, dim: int) -> None:
    """Every |a_i| is `depth` of the way to the edge."""
    a = torch.full((dim,), -depth / scale, dtype=torch.float64)
    with mp.workdps(DIGITS):
        expected = product(partial(laplace, scale))([mp.mpf(float(a[0]))], dim)
        check(al.Laplace(dim, scale=scale), a, expected, with_cov=dim == 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_a_million_do_not_overflow(dtype: torch.dtype) -> None:
    tokens = torch.tensor(TOKENS, dtype=dtype)
    laws = [
        al.Empirical(tokens),
        al.Mixture(
            torch.tensor([0.5, 0.5], dtype=dtype), [al.Gaussian(tokens[0], 0.5), al.Gaussian(tokens[1], 0.25)]
        ),
        al.Sphere(3, dtype=dtype),
        al.Ball(3, dtype=dtype),
        al.Box(3, dtype=dtype),
        al.Rademacher(3, dtype=dtype),
    ]
    a = torch.tensor([[1e6, 0.0, 0.0], [-1e6, 1.0, 0.0]], dtype=dtype)
    for law in laws:
        for value in (law.cgf(a), law.tilted_mean(a), law.tilted_cov(a)):
            assert value.dtype == dtype
            assert bool(value.isfinite().all()), law
    torch.testing.assert_close(laws[0].tilted_mean(a), tokens[[4, 3]])
    torch.testing.assert_close(laws[0].cgf(a[0]), torch.tensor(1.5e6, dtype=dtype), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("size", "dtype"), [(1e-25, torch.float32), (1e-200, torch.float64), (1e-310, torch.float64)]
)
def test_scores_whose_squares_underflow_have_their_direction(size: float, dtype: torch.dtype) -> None:
    """Λ is R²‖a‖²/2k there: the covariance is that without scores, and the top is where a points."""
    a = torch.tensor([0.8, -0.6, 0.0], dtype=dtype)
    for law in (al.Sphere(3, 2.0, dtype=dtype), al.Ball(3, 2.0, dtype=dtype)):
        torch.testing.assert_close(law.tilted_cov(size * a), law.covariance)
        torch.testing.assert_close(law.top(size * a), 2.0 * a, rtol=1e-4, atol=0)
        assert not bool(law.top(0 * a).any())
