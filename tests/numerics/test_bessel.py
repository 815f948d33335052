import mpmath as mp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlimit.numerics.bessel import SphereCgf, sphere_cgf

DIMS = [1, 2, 3, 4, 5, 10, 50, 64, 767, 768, 1000, 4096, 100_000]
RADII = [10.0**k for k in range(-8, 9)]
TOLERANCE = 1e-12
DIGITS = 42  # Λ is the logarithm of 1 + 5e-22 at r = 1e-8 and d = 1e5


def reference_cgf(r: float, dim: int) -> list[mp.mpf]:
    """(Λ, A, A/r, A′) as log-integral, mean and variance of t under the density ∝ e^{rt} (1 − t²)^{(d−3)/2}.

    With t = tanh u the trapezoidal rule converges exponentially; the nodes are centred on the peak.
    """
    with mp.workdps(DIGITS):
        rate, power = mp.mpf(r), mp.mpf(dim - 1)
        peak = 2 * rate / (power + mp.sqrt(power**2 + 4 * rate**2))
        centre = mp.atanh(peak)
        step = min(mp.mpf("0.05"), 1 / (4 * mp.sqrt((1 - peak**2) * (2 * rate * peak + power))))
        top = rate * peak + power * mp.log(1 - peak**2) / 2
        mass = first = second = mp.mpf(0)
        for direction in (1, -1):
            k = 0 if direction == 1 else 1
            while True:
                u = centre + direction * k * step
                decay = mp.exp(-2 * abs(u))
                t = mp.sign(u) * (1 - decay) / (1 + decay)
                exponent = rate * t - power * (abs(u) + mp.log((1 + decay) / 2)) - top
                if exponent < -100:
                    break
                weight, offset = mp.exp(exponent), t - peak
                mass, first, second = mass + weight, first + weight * offset, second + weight * offset**2
                k += 1
        shift = first / mass
        mean, variance = peak + shift, second / mass - shift**2
        cgf = mp.log(mass * step) + top - mp.log(mp.beta(mp.mpf(1) / 2, power / 2))
        return [cgf, mean, mean / rate, variance]


def rademacher_cgf(r: float) -> list[mp.mpf]:
    with mp.workdps(DIGITS):
        x = mp.mpf(r)
        return [mp.log(mp.cosh(x)), mp.tanh(x), mp.tanh(x) / x, mp.sech(x) ** 2]


def segment_cgf(r: float) -> list[mp.mpf]:
    with mp.workdps(DIGITS):
        x = mp.mpf(r)
        mean = mp.coth(x) - 1 / x
        return [mp.log(mp.sinh(x) / x), mean, mean / x, 1 / x**2 - mp.csch(x) ** 2]


def assert_close(actual: SphereCgf, references: list[list[mp.mpf]], radii: list[float]) -> None:
    for name, column, values in zip(SphereCgf._fields, zip(*references, strict=True), actual, strict=True):
        for r, expected, value in zip(radii, column, values.tolist(), strict=True):
            # sech² r leaves the range of float64 at r = 355; there the only right answer is (almost) zero.
            error = abs(value - expected) / max(abs(expected), mp.mpf("1e-300"))
            assert error < TOLERANCE, f"{name} at r = {r:g}: {value!r}, expected {mp.nstr(expected, 17)}"


@pytest.mark.parametrize("dim", DIMS[1:])
def test_matches_the_defining_integral(dim: int) -> None:
    actual = sphere_cgf(torch.tensor(RADII, dtype=torch.float64), dim)
    assert_close(actual, [reference_cgf(r, dim) for r in RADII], RADII)


@pytest.mark.parametrize(("dim", "closed_form"), [(1, rademacher_cgf), (3, segment_cgf)])
def test_matches_elementary_functions_in_dimensions_one_and_three(dim: int, closed_form) -> None:
    radii = [10.0 ** (k / 8) for k in range(-64, 65)]
    actual = sphere_cgf(torch.tensor(radii, dtype=torch.float64), dim)
    assert_close(actual, [closed_form(r) for r in radii], radii)


@pytest.mark.parametrize("dim", [2, 4, 7, 23, 24, 25, 26, 27, 28])
def test_matches_bessel_functions_between_the_decades(dim: int) -> None:
    """The dimensions around 26 are where the number of steps down reaches one."""
    radii = [10.0 ** (k / 7) for k in range(-20, 30)]
    with mp.workdps(DIGITS):
        references = []
        for r in map(mp.mpf, radii):
            ratio = mp.besseli(mp.mpf(dim) / 2, r) / mp.besseli(mp.mpf(dim) / 2 - 1, r)
            derivative = 1 - ratio**2 - (dim - 1) * ratio / r
            references.append([mp.log(mp.hyp0f1(mp.mpf(dim) / 2, r**2 / 4)), ratio, ratio / r, derivative])
    assert_close(sphere_cgf(torch.tensor(radii, dtype=torch.float64), dim), references, radii)


@pytest.mark.parametrize("dim", DIMS)
def test_is_exact_at_zero(dim: int) -> None:
    values = sphere_cgf(torch.zeros((), dtype=torch.float64), dim)
    assert tuple(value.item() for value in values) == (0.0, 0.0, 1 / dim, 1 / dim)


@given(r=st.floats(0, 1e8), dim=st.integers(1, 3000))
def test_shape_of_the_cgf(r: float, dim: int) -> None:
    """Λ is even with 0 ≤ Λ ≤ r and Λ ≤ r²/(2d); A is odd with A ≤ min(1, r/d); A′ is in [0, A/r]."""
    cgf, ratio, ratio_over_r, derivative = sphere_cgf(torch.tensor([r, -r], dtype=torch.float64), dim)
    slack = 1 + TOLERANCE
    assert cgf[0] == cgf[1]
    assert ratio[0] == -ratio[1]
    assert 0 <= cgf[0] <= slack * min(r, r * r / (2 * dim))
    assert 0 <= ratio[0] <= slack * min(1, r / dim)
    assert 0 <= derivative[0] <= slack * ratio_over_r[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_keeps_shape_and_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for value in sphere_cgf(torch.ones(shape, dtype=dtype), dim=5):
        assert value.shape == shape
        assert value.dtype == dtype


def test_single_precision_input_is_computed_in_double() -> None:
    r = torch.tensor([1e-6, 1.0, 1e6])
    for single, double in zip(sphere_cgf(r, dim=2), sphere_cgf(r.double(), dim=2), strict=True):
        assert torch.equal(single, double.float())


def test_accepts_an_argument_that_requires_grad() -> None:
    r = torch.linspace(0, 9, 4, dtype=torch.float64, requires_grad=True)
    cgf, ratio, _, _ = sphere_cgf(r, dim=4)
    (gradient,) = torch.autograd.grad(cgf.sum(), r)
    torch.testing.assert_close(gradient, ratio, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dim", [0, -3])
def test_refuses_a_dimension_below_one(dim: int) -> None:
    with pytest.raises(ValueError, match=f"dim must be at least 1, got {dim}"):
        sphere_cgf(torch.ones(2), dim)
