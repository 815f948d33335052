"""Laws fitted to error curves: a power of n, or one over its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError, RateNotResolved
from attnlimit.files.records import Recorded
from attnlimit.inputs import Array, Seeded, as_counts, as_generator, as_positive
from attnlimit.rates.bootstrap import Contrast, Resamples, checked_level, studentised
from attnlimit.rates.logs import Logs, logs


@dataclass(frozen=True, eq=False)
class Fit(Recorded):
    """What both laws have in common: log error = intercept + (a function of n) + noise."""

    also = ("scale",)

    intercept: float
    """log C."""
    interval: tuple[float, float]
    """At confidence `level`: of the exponent (power law) or of C (logarithmic law)."""
    level: float
    residual_rms: float
    """Root mean square of the residuals of log error, unweighted: 0.01 is about 1 %."""
    n: tuple[int, ...]
    replicates: int
    method: str
    """How the fit and its interval were got."""

    @property
    def scale(self) -> float:
        """C."""
        return math.exp(self.intercept)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PowerFit(Fit):
    """error = C n^{−exponent}: a positive exponent is a falling error."""

    exponent: float

    def predict(self, n: object) -> Float[Tensor, " k"]:
        """C n^{−exponent}."""
        log_n = torch.tensor(as_counts(n), dtype=torch.float64).log()
        return (self.intercept - self.exponent * log_n).exp()

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"PowerFit(exponent {self.exponent:.4g}, {100 * self.level:g} % interval {low:.4g} to {high:.4g})"
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LogFit(Fit):
    """error = C/log n (natural logarithm)."""

    def predict(self, n: object) -> Float[Tensor, " k"]:
        """C/log n."""
        return self.scale / torch.tensor(as_counts(n), dtype=torch.float64).log()

    def __repr__(self) -> str:
        low, high = self.interval
        return f"LogFit({self.scale:.4g}/log n, {100 * self.level:g} % interval {low:.4g} to {high:.4g})"


def fit_power(
    n: object,
    errors: Array,
    *,
    standard_errors: Array | None = None,
    statistic: str = "mean",
    level: float = 0.95,
    resamples: Resamples = 2000,
    max_width: float | None = None,
    generator: Seeded = 0,
) -> PowerFit:
    """error = C n^{−exponent}, by weighted least squares of log error on log n.

    `errors` is (replicates, k) for k sizes n, or a curve (k,).
    - Rows, which may share tokens between sizes: the curve is their mean, or with statistic="rms" the root of
      the mean of their squares; weights are one over the variance of its logarithm. The interval is a bootstrap-t
      of whole rows, so correlation between sizes is in it.
    - A curve with `standard_errors`: weights from them, and a normal interval that takes sizes as independent.
    - A curve alone: equal weights, and a t interval from the residuals.
    `statistic` is for rows; a curve is taken as it is. With `max_width`, an interval wider than that is refused
    with RateNotResolved, which carries the estimate. The interval covers noise, not curvature: a curve that is
    no power law has an exponent that changes with n, see `local_slopes`. It is short of its level when a few
    replicates carry the mean: 89 % for 95 % in the "rms" of 50 log-normal errors with standard deviation 1 in log.

    >>> fit_power([10, 100, 1000], [0.1, 0.01, 0.001])
    PowerFit(exponent 1, 95 % interval 1 to 1)
    """
    level = checked_level(level)
    data = logs(n, errors, standard_errors, statistic)
    x = data.log_n

    def contrast(weights: np.ndarray) -> np.ndarray:
        """Coefficients of the exponent: minus the slope of the weighted regression on log n."""
        share = weights / weights.sum(-1, keepdims=True)
        centred = x - (share * x).sum(-1, keepdims=True)
        return -share * centred / (share * centred**2).sum(-1, keepdims=True)

    exponent = float(contrast(data.weights) @ data.y)
    intercept = _mean(data.weights, data.y + exponent * x)
    residuals = data.y + exponent * x - intercept
    interval, method = _interval(data, data.y, contrast, residuals, 2, (level, resamples, generator))
    fit = PowerFit(
        intercept, interval, level, _rms(residuals), data.n, data.replicates, method, exponent=exponent
    )
    return fit if max_width is None else narrow(fit, max_width)


def fit_log(
    n: object,
    errors: Array,
    *,
    standard_errors: Array | None = None,
    statistic: str = "mean",
    level: float = 0.95,
    resamples: Resamples = 2000,
    generator: Seeded = 0,
) -> LogFit:
    """error = C/log n, by weighted least squares of log error + log log n; arguments as for `fit_power`.

    >>> fit_log([10, 100, 1000], [0.6, 0.3, 0.2])
    LogFit(1.382/log n, 95 % interval 1.382 to 1.382)
    """
    level = checked_level(level)
    data = logs(n, errors, standard_errors, statistic)
    if data.n[0] < 2:
        raise InputError("C/log n is infinite at n = 1: leave that size out.")
    z = data.y + np.log(data.log_n)

    def contrast(weights: np.ndarray) -> np.ndarray:
        return weights / weights.sum(-1, keepdims=True)

    intercept = _mean(data.weights, z)
    residuals = z - intercept
    (low, high), method = _interval(data, z, contrast, residuals, 1, (level, resamples, generator))
    interval = (math.exp(low), math.exp(high))
    return LogFit(intercept, interval, level, _rms(residuals), data.n, data.replicates, method)


def narrow(fit: PowerFit, max_width: float) -> PowerFit:
    """The fit itself when its interval is at most `max_width` wide, else RateNotResolved."""
    width = fit.interval[1] - fit.interval[0]
    if width <= as_positive(max_width, "max_width"):
        return fit
    raise RateNotResolved(
        f"The exponent is not resolved: {fit.exponent:.3g}, but its {100 * fit.level:g} % interval "
        f"{fit.interval[0]:.3g} to {fit.interval[1]:.3g} is {width:.3g} wide, and at most {max_width:g} was asked for. "
        "Run more replicates or a wider range of n.",
        fit.exponent,
        fit.interval,
        (fit,),
    )


def _interval(
    data: Logs,
    z: np.ndarray,
    contrast: Contrast,
    residuals: np.ndarray,
    parameters: int,
    how: tuple[float, int, Seeded],
) -> tuple[tuple[float, float], str]:
    """The interval of contrast(weights)·z, and in words how it was got."""
    level, count, generator = how
    if data.deviations is not None:
        words = f"weighted least squares in log-log; bootstrap-t, {count} resamples of {data.replicates} whole rows"
        return studentised(data, z, contrast, level, count, as_generator(generator)), words
    c = contrast(data.weights)
    estimate, tail = float(c @ z), (1 + level) / 2
    if data.variance is not None:
        half = float(scipy.special.ndtri(tail)) * math.sqrt((c**2 * data.variance).sum())
        words = "weighted least squares in log-log; normal interval from standard errors, sizes taken as independent"
    else:
        free = len(data.n) - parameters
        noise = (residuals**2).sum() / free
        half = float(scipy.special.stdtrit(free, tail)) * math.sqrt((c**2).sum() * noise)
        words = f"least squares in log-log; t interval from the residuals, {free} degrees of freedom"
    return (estimate - half, estimate + half), words


def _mean(weights: np.ndarray, values: np.ndarray) -> float:
    return float((weights * values).sum() / weights.sum())


def _rms(values: np.ndarray) -> float:
    return math.sqrt((values**2).mean())
