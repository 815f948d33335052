"""Which law does an error curve follow: a power of n, or one over its logarithm?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from attnlimit.errors import InputError, RateNotResolved
from attnlimit.files.records import Recorded
from attnlimit.inputs import Array, Seeded, as_generator
from attnlimit.rates.bootstrap import Resamples
from attnlimit.rates.bootstrap import resamples as resampled
from attnlimit.rates.fits import LogFit, PowerFit, fit_log, fit_power, narrow
from attnlimit.rates.logs import Logs, logs

LEAST_DELTA = 2.0
LEAST_SIZES = 5


@dataclass(frozen=True, eq=False, repr=False)
class Choice(Recorded):
    """The better of two laws for one curve, by Akaike's criterion."""

    best: Literal["power", "log"]
    delta_aic: float
    """AIC(log) − AIC(power): positive favours the power law."""
    support: float | None
    """Share of the resamples of whole replicate rows in which the same law wins; None without rows."""
    misfit: float | None
    """χ² per degree of freedom of the better law, None when the noise is unknown. Far above 1, neither is right."""
    power: PowerFit
    log: LogFit
    method: str

    @property
    def fit(self) -> PowerFit | LogFit:
        """The fit of the better law."""
        return self.power if self.best == "power" else self.log

    def __repr__(self) -> str:
        return f"Choice({self.best}, ΔAIC {self.delta_aic:.3g}: {self.power!r} against {self.log!r})"


def choose(
    n: object,
    errors: Array,
    *,
    standard_errors: Array | None = None,
    statistic: str = "mean",
    level: float = 0.95,
    resamples: Resamples = 2000,
    max_width: float | None = None,
    generator: Seeded = 0,
) -> Choice:
    """C n^{−exponent} against C/log n, by AIC = −2 log L + 2 (number of parameters).

    Both laws have the same likelihood: log error is Gaussian around them, independently at each n, with
    - known variances (from replicate rows or `standard_errors`): −2 log L = Σ residual²/variance;
    - one unknown variance (a curve alone): −2 log L = k log(Σ residual²/k); the variance counts as a parameter, and
      the criterion is corrected for small k (AICc), which then must be at least 5.
    Sizes that share tokens are not independent, so with rows the choice must also hold in a share `level` of the
    resamples of whole rows.

    Refuses with RateNotResolved, which carries both fits, when |ΔAIC| < 2, when resampling changes the winner
    too often, or when the power law wins but its exponent's interval is wider than `max_width`.

    >>> n = [10, 100, 1000, 10000, 100000]
    >>> choose(n, [0.5, 0.16, 0.05, 0.016, 0.005]).best
    'power'
    """
    how: dict[str, Any] = {"standard_errors": standard_errors, "statistic": statistic, "level": level}
    how |= {"resamples": resamples, "generator": generator}
    power, log = fit_power(n, errors, **how), fit_log(n, errors, **how)
    data = logs(n, errors, standard_errors, statistic)
    if data.variance is None and len(data.n) < LEAST_SIZES:
        raise InputError(
            f"A curve whose noise is unknown tells two laws apart from {LEAST_SIZES} sizes on, got {len(data.n)}: "
            "give more sizes, standard_errors, or replicate rows."
        )
    scores = criteria(data, data.y)
    delta = float(scores[1] - scores[0])
    best: Literal["power", "log"] = "power" if delta > 0 else "log"
    support = None if data.deviations is None else _support(data, delta, resamples, as_generator(generator))
    known = data.variance is not None
    parameters = 2 if best == "power" else 1
    misfit = (float(scores.min()) - 2 * parameters) / (len(data.n) - parameters) if known else None
    method = f"{'AIC' if known else 'AICc'}, Gaussian in log error, {'known variances' if known else 'one unknown variance'}"
    choice = Choice(best, delta, support, misfit, power, log, method)
    return _resolved(choice, level, max_width)


def criteria(data: Logs, y: Float[np.ndarray, "*b k"]) -> Float[np.ndarray, "law=2 *b"]:
    """AIC of the power law and of the logarithmic law for log errors y."""
    share = data.weights / data.weights.sum()
    x = data.log_n - (share * data.log_n).sum()
    level = (share * y).sum(-1, keepdims=True)
    slope = (share * x * y).sum(-1, keepdims=True) / (share * x**2).sum()
    z = y + np.log(data.log_n)
    residuals = np.stack([y - level - slope * x, z - (share * z).sum(-1, keepdims=True)])
    squares = (residuals**2 * data.weights).sum(-1)
    p = np.array([2.0, 1.0]).reshape(2, *[1] * (squares.ndim - 1))
    if data.variance is not None:
        return squares + 2 * p
    k, p = len(data.n), p + 1
    rounding = (np.finfo(float).eps * (1 + np.abs(y).max())) ** 2  # an exact fit has no finite AIC
    return k * np.log(np.maximum(squares / k, rounding)) + 2 * p * k / (k - p - 1)


def _support(data: Logs, delta: float, count: int, generator: torch.Generator) -> float:
    wins = []
    for block in resampled(data, count, generator):
        power, log = criteria(data, data.y + block.change(data))
        wins.append((log - power) * delta > 0)
    return float(np.concatenate(wins).mean())


def _resolved(choice: Choice, level: float, max_width: float | None) -> Choice:
    why = ""
    if abs(choice.delta_aic) < LEAST_DELTA:
        why = f"their AIC differ by {abs(choice.delta_aic):.2g}, less than {LEAST_DELTA:g}"
    elif choice.support is not None and choice.support < level:
        why = f"{choice.best} wins in {100 * choice.support:.0f} % of the resamples only, less than {100 * level:g} %"
    if why:
        low, high = choice.power.interval
        raise RateNotResolved(
            f"A power law (exponent {choice.power.exponent:.3g}, {low:.3g} to {high:.3g}) and C/log n "
            f"cannot be told apart: {why}. Use a wider range of n or more replicates.",
            choice.power.exponent,
            choice.power.interval,
            (choice.power, choice.log),
        )
    if max_width is not None and choice.best == "power":
        narrow(choice.power, max_width)
    return choice
