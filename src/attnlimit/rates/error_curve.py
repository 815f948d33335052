"""An error against the number of keys: one interpolation, one least n, one record."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.inputs import shown
from attnlimit.rates.fits import PowerFit, fit_power
from attnlimit.rates.logs import local_exponents

FIELDS = ("n", "error", "statistic", "method")
OPTIONAL = ("standard_error", "keys", "full", "scale", "rows")
ARRAYS = ("error", "standard_error", "keys", "rows")


@dataclass(frozen=True, eq=False, repr=False)
class ErrorCurve(Drawn):
    """How far n keys are from all of them, at each n of a grid.

    Between grid points the squared error is taken as a + b/n, as it is where the central limit theorem holds, with and
    without replacement; a grid that starts at 0 (nothing drawn) is joined to its next point by a straight line.

    >>> curve = ErrorCurve((1, 16), torch.tensor([1.0, 0.25]))
    >>> round(curve.at(4), 12), curve.least(0.5)
    (0.5, 4)
    """

    n: tuple[int, ...]
    error: Float[Tensor, " n"]
    standard_error: Float[Tensor, " n"] | None = None
    """None: the error has no noise."""
    statistic: str = "rms"
    """How errors are averaged: "rms" is (E‖Γ_n − Γ‖²)^{1/2} over keys and queries, "mean_rms" the mean over queries of
    that over keys, "mean" E‖Γ_n − Γ‖."""
    method: str = ""
    """How it was got: exact, or Monte Carlo with so many replicates."""
    keys: Float[Tensor, " n"] | None = None
    """Keys that a query reads, kept and drawn, mean over queries (None: n)."""
    full: int | None = None
    """Number of drawn keys that are all there are, without error (None: no n is)."""
    scale: float | None = None
    """Size of the outputs in the unit of the error, for relative errors."""
    rows: Float[Tensor, "replicates n"] | None = None
    """The error of each replicate, for the interval of a fit."""

    def __post_init__(self) -> None:
        n = self.n
        if not n or min(n) < 0:
            raise InputError(f"The n of a curve must be whole numbers of at least 0, got {shown(n)}.")
        if any(after <= before for before, after in pairwise(n)):
            raise InputError(f"The n of a curve must increase, got {list(n)}.")
        for name in ("error", "standard_error", "keys", "rows"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _checked(value, name))
        if self.scale is not None:
            _checked(self.scale, "scale")

    @classmethod
    def of_squares(
        cls, n: Sequence[int], squares: Float[Tensor, "sets n"], method: str, scale: float | None = None
    ) -> ErrorCurve:
        """Root of the mean of independent estimates of the squared error. What one says is off alike at all n: by rows a slope is known
        better than by standard errors."""
        square, noise = squares.mean(0), squares.std(0) / len(squares) ** 0.5
        error = square.clamp_min(0).sqrt()
        rows = squares.sqrt() if bool((squares > 0).all()) else None
        return cls(
            tuple(n), error, noise / (2 * error.clamp_min(1e-300)), method=method, scale=scale, rows=rows
        )

    @cached_property
    def _errors(self) -> list[float]:
        return self.error.tolist()

    @cached_property
    def _ends(self) -> list[tuple[int, float] | None]:
        """Where the piece that starts at each grid point ends: at the next one, or with all keys after the last."""
        following = [*zip(self.n, self._errors, strict=True)][1:]
        if self.full is None:
            return [*following, None]
        last = (self.full, 0.0)
        nearest = [min(one, last) for one in following] + [last]
        return [end if here < self.full else None for here, end in zip(self.n, nearest, strict=True)]

    @cached_property
    def _keys(self) -> list[float]:
        return [] if self.keys is None else self.keys.tolist()

    def at(self, n: int) -> float:
        """The error at n: 0 where all keys are drawn, and past the grid what it is at its end."""
        if self.full is not None and n >= self.full:
            return 0.0
        k = bisect_right(self.n, n) - 1
        if k < 0:
            raise InputError(f"The curve starts at n = {self.n[0]}: what it is at {n} is not known.")
        if n == self.n[k]:
            return self._errors[k]
        end = self._ends[k]
        if end is None:
            return self._errors[-1]
        left, (right, last) = self.n[k], end
        share = n / right if left == 0 else (1 / left - 1 / n) / (1 / left - 1 / right)
        first = self._errors[k]
        scale = max(first, last) or 1.0  # so that squares neither overflow nor underflow
        square = (1 - share) * (first / scale) ** 2 + share * (last / scale) ** 2
        return scale * math.sqrt(square)

    def least(self, error: float) -> int | None:
        """The least n whose error is at most that; None where the curve never gets there."""
        if math.isnan(error):
            raise InputError("error must be a number, got nan: give the error that n keys may have.")
        for left, here, end in zip(self.n, self._errors, self._ends, strict=True):
            if here <= error:
                return left
            if end is None or end[1] > error:
                continue
            right, last = end
            share = (1 - (error / here) ** 2) / max(1 - (last / here) ** 2, 1e-300)
            exact = share * right if left == 0 else 1 / (1 / left + share * (1 / right - 1 / left))
            return min(right, max(left + 1, math.ceil(exact - 1e-9 * exact)))
        return None

    def keys_at(self, n: int) -> float:
        """Keys that a query reads when n are drawn, mean over queries: a straight line between grid points."""
        if not self._keys:
            return float(n)
        k = min(max(bisect_right(self.n, n) - 1, 0), len(self.n) - 1)
        if k + 1 == len(self.n):
            return self._keys[k]
        left, right = self.n[k], self.n[k + 1]
        share = min(max((n - left) / (right - left), 0.0), 1.0)
        return self._keys[k] + share * (self._keys[k + 1] - self._keys[k])

    @property
    def relative(self) -> Float[Tensor, " n"]:
        """The error relative to the size of the outputs."""
        if self.scale is None:
            raise InputError("This curve does not know the size of the outputs: relative to what?")
        return self.error / self.scale

    def local_slopes(self) -> Float[Tensor, " n"]:
        """−d log error/d log n at each n, positive where the error falls: a property of these finite n, no asymptotic
        exponent (`rates`); nan for a single n."""
        return local_exponents(self.n, self.error)

    def fit(self, **options: Any) -> PowerFit:
        """C n^{−exponent} with an interval: from resampled replicates where there are some, else from the standard
        errors or the residuals; `options` are those of `fit_power`."""
        if self.rows is not None:
            return fit_power(
                self.n, self.rows, statistic="rms" if self.statistic == "rms" else "mean", **options
            )
        noisy = self.standard_error is not None and bool((self.standard_error > 0).all())
        return fit_power(
            self.n, self.error, standard_errors=self.standard_error if noisy else None, **options
        )

    def __repr__(self) -> str:
        ends = f"{float(self.error[0]):.3g} … {float(self.error[-1]):.3g}"
        return f"ErrorCurve({self.statistic}, n = {self.n[0]} … {self.n[-1]}, {ends}; {self.method})"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words; what is not known is left out."""
        known = [name for name in (*FIELDS, *OPTIONAL) if getattr(self, name) is not None]
        return {name: _plain(getattr(self, name)) for name in known}

    @classmethod
    def from_dict(cls, record: object) -> ErrorCurve:
        """From what `to_dict` gives, checked."""
        if not isinstance(record, Mapping) or not set(FIELDS) <= set(record) <= {*FIELDS, *OPTIONAL}:
            raise InputError(f"A curve has the fields {', '.join(FIELDS)}, got {shown(record)}.")
        arrays = {name: _numbers(value, name) for name, value in record.items() if name in ARRAYS}
        return cls(**{**record, **arrays})


def _checked(value: Any, name: str) -> Float[Tensor, " ..."]:
    numbers = _numbers(value, name)
    finite = numbers.isfinite() if name != "standard_error" else ~numbers.isnan()
    if not bool((finite & (numbers >= 0)).all()):
        raise InputError(f"{name} of a curve must be finite and at least 0, got {numbers.tolist()}.")
    return numbers


def _numbers(value: Any, name: str) -> Float[Tensor, " ..."]:
    try:
        return torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(f"{name} of a curve must be numbers, got {shown(value)}.") from problem


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, Tensor) else list(value) if isinstance(value, tuple) else value
