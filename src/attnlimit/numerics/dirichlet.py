"""Expectations of a smooth function of a weighted sum of Dirichlet(½, …, ½) variables, to spectral accuracy."""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Num
from numpy.typing import NDArray
from scipy.fft import dct
from torch import Tensor

_NODE_COUNTS = (32, 64, 128, 256, 512)
_TAIL = 1e-13  # Chebyshev coefficients, relative to the largest, that count as decayed
_ROUNDING = 1e-17  # and those that no longer change a float64 sum

_Decimals = NDArray[np.object_]


class DirichletExpectation(NamedTuple):
    """E[F(q)], a scalar, and E[F(q) T_i] for every i."""

    mean: Tensor
    by_coordinate: Tensor


def dirichlet_expectation(
    function: Callable[[Tensor], Tensor], weights: Num[Tensor, " d"]
) -> DirichletExpectation:
    """E[F(q)] and E[F(q) T_i] for q = Σ_i s_i T_i, T ~ Dirichlet(½, …, ½): the law of x² for x uniform on the sphere.

        E[qⁿ]     = n!/(d/2)_n   · cₙ,                            Σ_n cₙ zⁿ = Π_i (1 − s_i z)^(−½)
        E[qⁿ T_i] = n!/(d/2+1)_n · (1/d) Σ_{j≤n} c_j s_i^{n−j}

    F is replaced by its Chebyshev interpolant on [min s, max s], the only approximation; the interpolant's powers
    of q then have the exact expectations above. Powers of degree N lose about 0.4 N digits, so they are summed in
    decimal arithmetic with that many to spare.

    `function` maps a float64 tensor to one of the same shape and must be smooth on [min s, max s]. The errors are
    about 1e-15 to 1e-13 of max |F| there (and of max |F|/d for each coordinate). `weights` may be any finite
    numbers; the result has their dtype and device.

    >>> mean, by_coordinate = dirichlet_expectation(torch.square, torch.tensor([1.0, 3.0]))
    >>> mean, by_coordinate  # (3/8)(1 + 9) + (1/8)·2·3 = 4.5
    (tensor(4.5000), tensor([1.5000, 3.0000]))
    """
    s = weights.detach().to(torch.float64)
    if not s.numel() or not s.isfinite().all():
        raise ValueError(f"dirichlet_expectation: weights must be finite and at least one, got {weights}.")
    low, high = s.min().item(), s.max().item()
    if low == high:
        mean = _values(function, s[:1]).squeeze(0)
        by_coordinate = (mean / len(s)).expand(len(s))
    else:
        chebyshev = _chebyshev_coefficients(function, low, high, s.device)
        distinct, inverse, counts = np.unique(s.cpu().numpy(), return_inverse=True, return_counts=True)
        digits = 40 + int(0.4 * len(chebyshev))
        with localcontext(Context(prec=digits)):
            total, parts = _expect_powers(_to_powers(chebyshev), _to_unit(distinct, low, high), counts)
        mean, by_coordinate = torch.tensor(total), torch.from_numpy(parts[inverse])
    return DirichletExpectation(mean.to(weights), by_coordinate.to(weights))


def _values(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    values = function(points)
    if values.shape != points.shape or not values.isfinite().all():
        raise ValueError(
            f"dirichlet_expectation: the function must give one finite value per point of "
            f"[{points.min():g}, {points.max():g}]; got shape {tuple(values.shape)} for {tuple(points.shape)}, "
            f"{int((~values.isfinite()).sum())} of them not finite."
        )
    return values.to(torch.float64)
