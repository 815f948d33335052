"""Expectations of a smooth function of a weighted Dirichlet(½, …, ½) average, to spectral accuracy."""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float
from numpy.polynomial.chebyshev import cheb2poly
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray
from torch import Tensor

_NODE_COUNTS = (32, 64, 128, 256, 512)
_DECAYED = 1e-13  # size of the last Chebyshev coefficients, relative to the largest

_Decimals = NDArray[np.object_]


class DirichletExpectation(NamedTuple):
    """E[F(q)], a scalar, and E[F(q) T_i] for every i."""

    mean: Tensor
    by_coordinate: Tensor


def dirichlet_expectation(
    function: Callable[[Tensor], Tensor], weights: Float[Tensor, " d"]
) -> DirichletExpectation:
    """E[F(q)] and E[F(q) T_i] for q = Σ_i s_i T_i, with T_i = x_i² and x uniform on the unit sphere of R^d.

        E[qⁿ]     = n!/(d/2)_n · c_n,                            Σ_n c_n zⁿ = Π_i (1 − s_i z)^−½
        E[qⁿ T_i] = n!/(d/2+1)_n · Σ_{j≤n} c_j s_i^{n−j} / d     (T is Dirichlet(½, …, ½), and T_i biases it)

    F is replaced by its Chebyshev interpolant on [min s, max s], which is the only approximation: powers of q have
    the exact expectations above. Summing powers up to degree N loses about 0.4 N digits, so the sums run in
    decimal arithmetic that has them to spare.

    `function` maps a float64 tensor to values of the same shape and is smooth on [min s, max s]. Errors are about
    1e-15 to 1e-13 of max |F| there, and that over d for each coordinate. The weights are any finite numbers; the
    results have their dtype and device.

    >>> mean, by_coordinate = dirichlet_expectation(torch.square, torch.tensor([1.0, 3.0]))
    >>> mean, by_coordinate
    (tensor(4.5000), tensor([1.2500, 3.2500]))
    """
    s = weights.detach().to(torch.float64)
    if s.numel() == 0 or not s.isfinite().all():
        raise ValueError(f"dirichlet_expectation: weights must be finite and at least one, got {weights}.")
    low, high = s.min().item(), s.max().item()
    if low == high:
        mean = _evaluate(function, s[:1]).squeeze(0)
        return DirichletExpectation(mean.to(weights), (mean / len(s)).expand(len(s)).to(weights))
    chebyshev = _chebyshev_coefficients(function, low, high, s.device)
    distinct, inverse, counts = np.unique(s.cpu().numpy(), return_inverse=True, return_counts=True)
    with localcontext(Context(prec=40 + 2 * len(chebyshev) // 5)):
        total, parts = _expect_powers(cheb2poly(_decimals(chebyshev)), _to_unit(distinct), counts)
    return DirichletExpectation(
        torch.tensor(float(total), dtype=torch.float64).to(weights),
        torch.from_numpy(parts.astype(np.float64)[inverse]).to(weights),
    )


def _chebyshev_coefficients(
    function: Callable[[Tensor], Tensor], low: float, high: float, device: torch.device
) -> NDArray[np.float64]:
    """f_k with F(q) = Σ_k f_k T_k(t), q = (low + high)/2 + t (high − low)/2, cut where rounding takes over."""
    for count in _NODE_COUNTS:
        angles = (torch.arange(count, dtype=torch.float64, device=device) + 0.5) * (torch.pi / count)
        points = (low + high) / 2 + (high - low) / 2 * angles.cos()
        coefficients = scipy.fft.dct(_evaluate(function, points).cpu().numpy()) / count
        coefficients[0] /= 2
        sizes = np.abs(coefficients)
        tail = sizes[-count // 8 :].max()
        if tail <= _DECAYED * sizes.max():
            significant = np.flatnonzero(sizes > np.finfo(np.float64).eps * sizes.max())
            return coefficients[: significant.max(initial=0) + 1]
    raise ValueError(
        f"dirichlet_expectation: the function is not resolved by {count} Chebyshev nodes on [{low:g}, {high:g}]: "
        f"its last coefficients are {tail / sizes.max():.1e} of the largest, {_DECAYED:g} is needed. "
        "Is it smooth there? Weights over a narrower range would help."
    )


def _evaluate(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    values = function(points).detach().to(torch.float64)
    if values.shape != points.shape:
        raise ValueError(
            f"dirichlet_expectation: the function returned shape {tuple(values.shape)} for {tuple(points.shape)} "
            "points. It must act on each point."
        )
    if not values.isfinite().all():
        worst = points[~values.isfinite()][0].item()
        raise ValueError(f"dirichlet_expectation: the function is not finite at q = {worst:g}.")
    return values


def _expect_powers(
    powers: _Decimals, weights: _Decimals, counts: NDArray[np.int64]
) -> tuple[Decimal, _Decimals]:
    """E[P(q)] and, for each distinct weight, E[P(q) T_i], where P(q) = Σ_n powers[n] qⁿ."""
    dim, size = int(counts.sum()), len(powers)
    c = _generating_coefficients(weights, counts, size)
    plain = powers * _pochhammer_ratios(Decimal(dim) / 2, size)
    biased = powers * _pochhammer_ratios(Decimal(dim) / 2 + 1, size)
    # Σ_n biased_n Σ_{j≤n} c_j s^{n−j} is a polynomial in s.
    in_weight = np.array([biased[k:] @ c[: size - k] for k in range(size)], dtype=object)
    return plain @ c, polyval(weights, in_weight) / dim


def _generating_coefficients(weights: _Decimals, counts: NDArray[np.int64], size: int) -> _Decimals:
    """c_0, …, c_{size−1} of Π_i (1 − s_i z)^−½ from the power sums: 2n c_n = Σ_{j=1}^n (Σ_i s_i^j) c_{n−j}."""
    c, sums = _decimals(np.ones(size)), _decimals(np.zeros(size))
    power = counts.astype(object)
    for n in range(1, size):
        power = power * weights
        sums[n] = power.sum()
        c[n] = sums[1 : n + 1] @ c[n - 1 :: -1] / (2 * n)
    return c


def _pochhammer_ratios(a: Decimal, size: int) -> _Decimals:
    """n!/(a)_n = Π_{k≤n} k/(a + k − 1) for n = 0, …, size − 1."""
    return np.cumprod(np.array([Decimal(1), *(k / (a + k - 1) for k in range(1, size))], dtype=object))


def _to_unit(weights: NDArray[np.float64]) -> _Decimals:
    """Map sorted weights to [−1, 1]."""
    exact = _decimals(weights)
    low, high = exact[0], exact[-1]
    unit: _Decimals = (2 * exact - low - high) / (high - low)
    return unit


def _decimals(values: NDArray[np.float64]) -> _Decimals:
    return np.array([Decimal(value) for value in values.tolist()], dtype=object)
