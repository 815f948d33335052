"""An error curve as people measure it, checked and taken to logarithms."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.numerics.inputs import Array, as_counts, as_float

LEAST_REPLICATES = 5


@dataclass(frozen=True, eq=False)
class Curve:
    """y = log of the mean (or root mean square) error at each n, and what is known of its noise."""

    n: tuple[int, ...]
    y: Float[Tensor, " k"]
    variance: Float[Tensor, " k"] | None
    """Variance of y at each n, None when nothing is known of it."""
    deviations: Float[Tensor, "m k"] | None = None
    """Replicate rows relative to their mean, e^p/mean(e^p) − 1, p = 1 (mean) or 2 (rms)."""
    power: int = 1

    @property
    def log_n(self) -> Float[Tensor, " k"]:
        return torch.tensor(self.n, dtype=torch.float64).log()

    @property
    def replicates(self) -> int:
        """Number of replicate rows; 1 for a single curve."""
        return 1 if self.deviations is None else len(self.deviations)

    @property
    def weights(self) -> Float[Tensor, " k"]:
        """Weights of least squares: one over the variance, equal where it is unknown."""
        return torch.ones_like(self.y) if self.variance is None else 1 / self.variance


def checked_sizes(n: object, least: int) -> tuple[int, ...]:
    """At least `least` numbers of tokens, strictly increasing."""
    sizes = as_counts(n)
    if len(sizes) < least:
        raise InputError(f"At least {least} sizes n are needed, got {len(sizes)}: give more values of n.")
    for before, after in pairwise(sizes):
        if after <= before:
            raise InputError(
                f"n must be strictly increasing, got {before} before {after}: sort the sizes and merge repeated ones."
            )
    return tuple(sizes)


def checked_errors(errors: Array, sizes: tuple[int, ...], name: str = "errors") -> Tensor:
    """Positive finite errors, in float64 on the CPU, whose last axis is n."""
    values = as_float(errors, name).detach().double().cpu()
    if values.ndim < 1 or values.shape[-1] != len(sizes):
        raise InputError(
            f"{name} must have one entry for each of the {len(sizes)} sizes n on the last axis, "
            f"got shape {tuple(values.shape)}."
        )
    if not bool((values > 0).all()):
        raise InputError(
            f"{name} must be positive, got {int((values <= 0).sum())} that are not "
            f"(the least is {float(values.min()):.3g}): logarithms are fitted, so leave out the sizes where it is exactly 0."
        )
    return values


def curve(n: object, errors: Array, standard_errors: Array | None = None, statistic: str = "mean") -> Curve:
    """Replicate rows (m, k) or one curve (k,), with the standard errors of the latter when they are known."""
    if statistic not in ("mean", "rms"):
        raise InputError(f"statistic must be 'mean' or 'rms', got {statistic!r}.")
    sizes = checked_sizes(n, least=3)
    values = checked_errors(errors, sizes)
    if values.ndim > 2:
        raise InputError(
            f"errors must have shape ({len(sizes)},), or (replicates, {len(sizes)}), got {tuple(values.shape)}."
        )
    if values.ndim == 2:
        return _from_rows(sizes, values, standard_errors, 1 if statistic == "mean" else 2)
    if standard_errors is None:
        return Curve(sizes, values.log(), None)
    known = checked_errors(standard_errors, sizes, "standard_errors")
    if known.shape != values.shape:
        raise InputError(
            f"standard_errors must have the shape of errors, {tuple(values.shape)}, got {tuple(known.shape)}."
        )
    return Curve(sizes, values.log(), (known / values).square())


def _from_rows(sizes: tuple[int, ...], rows: Tensor, standard_errors: Array | None, power: int) -> Curve:
    if standard_errors is not None:
        raise InputError(
            "standard_errors were given with replicate rows: the rows tell them, leave them out."
        )
    if len(rows) < LEAST_REPLICATES:
        raise InputError(
            f"Replicate rows tell their noise from {LEAST_REPLICATES} rows on, got {len(rows)}: "
            f"run more replicates, or give one curve of shape ({len(sizes)},)."
        )
    scale = rows.amax(0)  # so that squares neither overflow nor underflow
    powers = (rows / scale) ** power
    mean = powers.mean(0)
    deviations = powers / mean - 1
    variance = deviations.square().sum(0) / (len(rows) - 1) / len(rows) / power**2
    if bool((rows == rows[0]).all(0).any()):
        where = sizes[int((rows == rows[0]).all(0).int().argmax())]
        raise InputError(
            f"All replicates are equal at n = {where}, so their noise is unknown: "
            f"give one curve of shape ({len(sizes)},) if it has none."
        )
    return Curve(sizes, scale.log() + mean.log() / power, variance, deviations, power)
