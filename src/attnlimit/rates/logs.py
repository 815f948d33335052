"""An error curve as people measure it, checked and taken to logarithms; its exponent between neighbouring n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_counts, as_float

LEAST_REPLICATES = 5


@dataclass(frozen=True, eq=False)
class Logs:
    """y = log of the mean (or root mean square) error at each n, and what is known of its noise."""

    n: tuple[int, ...]
    y: Float[np.ndarray, " k"]
    variance: Float[np.ndarray, " k"] | None
    """Variance of y at each n, None when nothing is known of it."""
    deviations: Float[np.ndarray, "m k"] | None = None
    """Replicate rows relative to their mean, e^p/mean(e^p) − 1, p = 1 (mean) or 2 (rms)."""
    power: int = 1

    @property
    def log_n(self) -> Float[np.ndarray, " k"]:
        return np.log(np.array(self.n, dtype=float))

    @property
    def rows(self) -> Float[np.ndarray, "m k"]:
        """The deviations, which a single curve has none of."""
        if self.deviations is None:
            raise ValueError("a single curve has no rows to resample")
        return self.deviations

    @property
    def replicates(self) -> int:
        """Number of replicate rows; 1 for a single curve."""
        return 1 if self.deviations is None else len(self.deviations)

    @property
    def weights(self) -> Float[np.ndarray, " k"]:
        """Weights of least squares: one over the variance, equal where it is unknown."""
        return np.ones_like(self.y) if self.variance is None else 1 / self.variance


def checked_sizes(n: object, least: int = 1, name: str = "n") -> tuple[int, ...]:
    """At least `least` numbers of tokens, strictly increasing."""
    sizes = as_counts(n, name)
    if len(sizes) < least:
        raise InputError(
            f"At least {least} sizes {name} are needed, got {len(sizes)}: give more values of {name}."
        )
    for before, after in pairwise(sizes):
        if after <= before:
            raise InputError(
                f"{name} must be strictly increasing, got {before} before {after}: sort the sizes and merge repeated ones."
            )
    return tuple(sizes)


def checked_errors(errors: Array, sizes: tuple[int, ...], name: str = "errors") -> np.ndarray:
    """Positive finite errors, in float64, whose last axis is n."""
    values = as_float(errors, name).detach().double().cpu().numpy()
    if values.ndim < 1 or values.shape[-1] != len(sizes):
        raise InputError(
            f"{name} must have one entry for each of the {len(sizes)} sizes n on the last axis, "
            f"got shape {values.shape}."
        )
    if not (values > 0).all():
        raise InputError(
            f"{name} must be positive, got {int((values <= 0).sum())} that are not "
            f"(the least is {float(values.min()):.3g}): logarithms are fitted, so leave out the sizes where it is exactly 0."
        )
    return values


def logs(n: object, errors: Array, standard_errors: Array | None = None, statistic: str = "mean") -> Logs:
    """Replicate rows (m, k) or one curve (k,), with the standard errors of the latter when they are known."""
    if statistic not in ("mean", "rms"):
        raise InputError(f"statistic must be 'mean' or 'rms', got {statistic!r}.")
    sizes = checked_sizes(n, least=3)
    values = checked_errors(errors, sizes)
    if values.ndim > 2:
        raise InputError(
            f"errors must have shape ({len(sizes)},), or (replicates, {len(sizes)}), got {values.shape}."
        )
    if values.ndim == 2:
        return _from_rows(sizes, values, standard_errors, 1 if statistic == "mean" else 2)
    if standard_errors is None:
        return Logs(sizes, np.log(values), None)
    known = checked_errors(standard_errors, sizes, "standard_errors")
    if known.shape != values.shape:
        raise InputError(f"standard_errors must have the shape of errors, {values.shape}, got {known.shape}.")
    return Logs(sizes, np.log(values), (known / values) ** 2)


def _from_rows(sizes: tuple[int, ...], rows: np.ndarray, standard_errors: Array | None, power: int) -> Logs:
    if standard_errors is not None:
        raise InputError(
            "standard_errors were given with replicate rows: the rows tell them, leave them out."
        )
    if len(rows) < LEAST_REPLICATES:
        raise InputError(
            f"Replicate rows tell their noise from {LEAST_REPLICATES} rows on, got {len(rows)}: "
            f"run more replicates, or give one curve of shape ({len(sizes)},)."
        )
    scale = rows.max(0)  # so that squares neither overflow nor underflow
    powers = (rows / scale) ** power
    mean = powers.mean(0)
    deviations = powers / mean - 1
    variance = (deviations**2).sum(0) / (len(rows) - 1) / len(rows) / power**2
    constant = (rows == rows[0]).all(0)
    if constant.any():
        raise InputError(
            f"All replicates are equal at n = {sizes[int(constant.argmax())]}, so their noise is unknown: "
            f"give one curve of shape ({len(sizes)},) if it has none."
        )
    return Logs(sizes, np.log(scale) + np.log(mean) / power, variance, deviations, power)


def local_slopes(n: object, errors: Array) -> Float[Tensor, "*batch k"]:
    """−d log error/d log n at each n, a positive number where the error falls: the `local_exponent` of a curve.

    Central differences in log-log (exact for a parabola, also on uneven sizes), one-sided at both ends;
    `errors` has shape (*batch, k) for k sizes n, and so has the result. For curves without noise: noise in
    neighbouring errors is divided by their distance in log n. This is a property of finite n, and no
    asymptotic exponent (`attnlimit.rates`), which it may approach very slowly.

    >>> local_slopes([1, 10, 100], [1.0, 0.1, 0.001])
    tensor([1.0000, 1.5000, 2.0000], dtype=torch.float64)
    """
    sizes = checked_sizes(n, least=2)
    return local_exponents(sizes, torch.from_numpy(checked_errors(errors, sizes)))


def local_exponents(n: Sequence[int], errors: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The same of errors that need no checks; nan for a single n, and 0 at n = 0, near which nothing changes."""
    if len(n) < 2:
        return torch.full_like(errors, torch.nan)
    if n[0] == 0:
        return torch.nn.functional.pad(local_exponents(n[1:], errors[..., 1:]), (1, 0))
    log_n = torch.tensor(n, dtype=errors.dtype, device=errors.device).log()
    (slope,) = torch.gradient(errors.log(), spacing=(log_n,), dim=-1)
    return -slope
