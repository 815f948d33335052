"""How a constant grows with R: as a power of R, or exponentially in R²."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Growth:
    """log C = intercept + slope·(R² or log R), by least squares weighted with the standard errors of log C."""

    slope: float
    interval: tuple[float, float]
    """95 %; widened by the root of χ² per degree of freedom where the law does not fit within the errors."""
    misfit: float
    """χ², over all R."""


def exponential(R: Any, C: Any, relative_error: Any) -> Growth:
    """C = c·e^{slope·R²}.

    >>> round(exponential([1, 2, 3], np.exp(0.5 * np.array([1, 4, 9])), [0.01, 0.01, 0.01]).slope, 6)
    0.5
    """
    return _fit(np.square(np.asarray(R, dtype=float)), C, relative_error)


def polynomial(R: Any, C: Any, relative_error: Any) -> Growth:
    """C = c·R^{slope}.

    >>> round(polynomial([1, 2, 3], [2.0, 8.0, 18.0], [0.01, 0.01, 0.01]).slope, 6)
    2.0
    """
    return _fit(np.log(np.asarray(R, dtype=float)), C, relative_error)


def _fit(x: np.ndarray, C: Any, relative_error: Any) -> Growth:
    y, weight = np.log(np.asarray(C, dtype=float)), np.asarray(relative_error, dtype=float) ** -2.0
    share = weight / weight.sum()
    centred = x - share @ x
    slope = float((weight * centred) @ y / (weight @ centred**2))
    residuals = y - share @ y - slope * centred
    misfit, free = float(weight @ residuals**2), max(1, len(x) - 2)
    error = float((weight @ centred**2) ** -0.5) * max(1.0, misfit / free) ** 0.5
    half = float(stats.t.ppf(0.975, free)) * error
    return Growth(slope, (slope - half, slope + half), misfit)
