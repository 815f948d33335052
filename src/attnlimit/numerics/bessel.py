"""The cumulant generating function of the uniform unit sphere, by Bessel recurrences in the dimension."""

import math
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float
from numpy.polynomial.polynomial import polyadd, polyder, polyint, polymul
from numpy.typing import NDArray
from torch import Tensor

# The large-order expansion starts at ν ≥ 12 and is cut at the first order k with ν^−k below 1e-17. Starting
# higher would need fewer orders, but each step down costs time and adds rounding to A′ at large r.
_FIRST_ORDER = 12
SMALL_ORDER = 16
"""Up to which 2√order ≥ ν."""
_NEGLIGIBLE = 1e-17

_Polynomial = NDArray[np.object_]  # exact coefficients (Fraction), lowest power first


class SphereCgf(NamedTuple):
    """Λ_d(r), A_d(r) = Λ_d′(r), A_d(r)/r and A_d′(r), each shaped like r."""

    cgf: Tensor
    ratio: Tensor
    ratio_over_r: Tensor
    derivative: Tensor


def sphere_cgf(r: Float[Tensor, "*batch"], dim: int) -> SphereCgf:
    """Λ_d(r) = log E e^{r x₁} = log ₀F₁(;d/2; r²/4), x uniform on the unit sphere of R^d, with derivatives.

        A_d = Λ_d′ = I_{d/2}(r) / I_{d/2−1}(r),    A_d/r → 1/d at r = 0,    A_d′ = 1 − A_d² − (d−1) A_d/r

    Starts in a dimension high enough for Debye's expansion and comes down two dimensions at a time. Nothing
    cancels, so all four keep their relative accuracy (1e-12 in float64) at every |r| < 1e150, r = 0 included.

    >>> sphere_cgf(torch.tensor(0.0), dim=50).ratio_over_r
    tensor(0.0200)
    """
    if dim < 1:
        raise ValueError(f"sphere_cgf: dim must be at least 1, got {dim}. It is the d of R^d.")
    x = r.to(torch.float64)
    # At least one step down: it makes the values at r = 0 exact.
    steps = max(1, _FIRST_ORDER + 1 - dim // 2)
    cgf, ratio_over_r, derivative = _high_dimension(x, dim + 2 * steps)
    for lower in range(dim + 2 * steps - 2, dim - 2, -2):
        cgf, ratio_over_r, derivative = _two_dimensions_down(x, lower, cgf, ratio_over_r, derivative)
    if dim == 1:
        derivative = x.cosh().square().reciprocal()  # exponentially small, so the recurrence would cancel
    values = SphereCgf(cgf, x * ratio_over_r, ratio_over_r, derivative)
    return SphereCgf(*(value.to(r.dtype) for value in values))


def _two_dimensions_down(
    r: Tensor, dim: int, cgf: Tensor, ratio_over_r: Tensor, derivative: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """From d + 2 to d:  Λ_d = Λ_{d+2} + log(1 + r A_{d+2}/d),  A_d/r = 1/(d + r A_{d+2}) and

    A_d′ = (d − r² A′_{d+2}) / (d + r A_{d+2})²,  where r² A′_{d+2} stays near or below (d+1)/2.
    """
    square = r.square()
    excess = square * ratio_over_r
    denominator = dim + excess
    return (
        cgf + torch.log1p(excess / dim),
        denominator.reciprocal(),
        (dim - square * derivative) / denominator.square(),
    )


def _high_dimension(r: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Λ, A/r and A′ by Debye's expansion at ν = d/2 − 1, with z = r/ν, p = 1/√(1+z²) and w = 1/p − 1:

        Λ   = ν (w − log(1 + w/2)) − ¼ log(1 + z²) + S(p) − S(1),    S = Σ_k D_k/ν^k
        A/r = p / (ν(1+p)) − G(p),                                   G = (p²/2 + p³ S′(p)) / ν²
        A′  = p² / (ν(1+p)) − (G − (1−p²) p G′)

    S(1) is Stirling's series: it absorbs log Γ(d/2).
    """
    order = dim / 2 - 1
    series = _debye_series(dim)
    square = (r / order).square()
    root = torch.sqrt(1 + square)
    p = 1 / root
    w = square / (1 + root)
    leading = p / (order * (1 + p))
    one_minus_p = w * p
    cgf = order * (w - torch.log1p(w / 2)) - torch.log1p(square) / 4 + one_minus_p * _horner(series.cgf, p)
    return (
        cgf,
        leading - _horner(series.ratio_over_r, p),
        p * leading - _horner(series.derivative, p),
    )


class _DebyeSeries(NamedTuple):
    """Coefficients in p of (S(p) − S(1))/(1−p), of G and of G − (1−p²) p G′ (see `_high_dimension`)."""

    cgf: NDArray[np.float64]
    ratio_over_r: NDArray[np.float64]
    derivative: NDArray[np.float64]


@cache
def _debye_series(dim: int) -> _DebyeSeries:
    order = Fraction(dim, 2) - 1
    slope = _exact(0)
    for k in range(1, 1 + math.ceil(math.log(_NEGLIGIBLE) / -math.log(order))):
        slope = polyadd(slope, _debye_slope(k) * order**-k)
    correction = polyadd(_exact(0, 0, Fraction(1, 2)), polymul(_exact(0, 0, 0, 1), slope)) * order**-2
    derivative = polyadd(correction, polymul(_exact(0, -1, 0, 1), polyder(correction)))
    quotient = _over_one_minus_p(polyint(slope))
    return _DebyeSeries(*(poly.astype(np.float64) for poly in (quotient, correction, derivative)))


@cache
def _debye_slope(k: int) -> _Polynomial:
    """D_k′, where log Σ_k U_k(p)/ν^k = Σ_k D_k(p)/ν^k for Debye's polynomials U_k:

        D_1′ = (1 − 5p²)/8,    D_{k+1}′ = (L D_k′)′ + L Σ_{i+j=k} D_i′ D_j′,    L = p²(1 − p²)/2

    which is Debye's recurrence for U_k, written for the logarithm.
    """
    if k == 1:
        return _exact(Fraction(1, 8), 0, Fraction(-5, 8))
    weight = _exact(0, 0, Fraction(1, 2), 0, Fraction(-1, 2))
    slope = polyder(polymul(weight, _debye_slope(k - 1)))
    for i in range(1, k - 1):
        slope = polyadd(slope, polymul(weight, polymul(_debye_slope(i), _debye_slope(k - 1 - i))))
    return slope


def _over_one_minus_p(poly: _Polynomial) -> _Polynomial:
    """(poly(p) − poly(1)) / (1 − p): the coefficient of p^j is minus the sum of poly's above j."""
    return -np.cumsum(poly[:0:-1])[::-1]


def _exact(*coefficients: Fraction | int) -> _Polynomial:
    return np.array([Fraction(c) for c in coefficients], dtype=object)


def _horner(coefficients: NDArray[np.float64], p: Tensor) -> Tensor:
    total = torch.zeros_like(p)
    for coefficient in coefficients[::-1].tolist():
        total = total * p + coefficient
    return total


def sum_transform(share: Float[Tensor, " d"], order: int, r: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """E e^{irξ} − 1 for ξ = Σ c_i x_i of variance 1, c ∝ `share` and x_i independent heights of uniform points on the unit sphere of
    R^order: Π ₀F₁(;order/2; −(r c_i)²/4) − 1, without cancellation at small r."""
    total = torch.zeros_like(r)
    for c in (share[share != 0] / share.norm()).tolist():
        one = _height_transform(order**0.5 * c * r, order)
        total = total + one + total * one
    return total


def _height_transform(r: Tensor, order: int) -> Tensor:
    """₀F₁(;order/2; −r²/4) − 1: by its series, and by J beyond r = 2√order, whose general form is slow."""
    if order == 1:
        return -2 * (r / 2).sin().square()
    near = r.abs() <= 2 * order**0.5
    x = -r[near].square() / 4
    term, total = torch.ones_like(x), torch.zeros_like(x)
    for k in range(25):
        term.mul_(x).div_((order / 2 + k) * (k + 1))
        total.add_(term)
    far = r[~near].abs()
    bessel = _upward(far, order) if order <= SMALL_ORDER else _any_order(far, order)
    return torch.empty_like(r).masked_scatter(near, total).masked_scatter(~near, bessel - 1)


def _any_order(r: Tensor, order: int) -> Tensor:
    """₀F₁(;order/2; −r²/4) = Γ(ν + 1) (2/r)^ν J_ν(r), ν = order/2 − 1."""
    nu, x = order / 2 - 1, r.numpy()
    factor = np.exp(scipy.special.gammaln(nu + 1) + nu * np.log(2 / x))
    return torch.as_tensor(factor * scipy.special.jv(nu, x))


def _upward(r: Tensor, order: int) -> Tensor:
    """The same from those of orders 1 and 3 (cos r, sin r/r) or 2 and 4 (J₀, 2J₁/r), by F_{k+4} = (F_{k+2} − F_k) k(k + 2)/r², which
    is stable where r ≥ ν."""
    odd, x = order % 2, r.numpy()
    low, high = (np.cos(x), np.sin(x) / x) if odd else (scipy.special.j0(x), 2 * scipy.special.j1(x) / x)
    for k in range(1 if odd else 2, order, 2):
        low, high = high, (high - low) * (k * (k + 2) / x**2)
    return torch.as_tensor(low)
