"""The law of the error in a direction, without Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs import Sampling
from attnlimit.designs.sampling import PLAIN
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError, NotKnown
from attnlimit.exact.drawn import DrawnKeys
from attnlimit.exact.error import as_sizes
from attnlimit.exact.prepare import prepare, rest_of
from attnlimit.inputs import Array, Chance, Finite, as_float
from attnlimit.measures import Measure

FINE = 8.0
"""By so much the nodes of a density are finer than for moments."""
COARSE = 0.01
"""Errors of a probability above which it is not given."""
FAINT = 1e-8
"""Probabilities below it are lost in what an inversion leaves."""
SHOWN = (0.005, 0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975, 0.995)
SAME = 1e-12
"""Relative difference within which errors are one."""


@dataclass(frozen=True, eq=False, repr=False)
class ErrorLaw(Drawn):
    """The law of eᵀ(Γ_n(x) − Γ(x)) for one query, one direction and one n."""

    n: int
    limit: float
    """eᵀΓ(x)."""
    bias: float
    """E eᵀ(Γ_n − Γ)."""
    rms: float
    """(E (eᵀ(Γ_n − Γ))²)^½."""
    method: str
    keys: DrawnKeys
    outcomes: tuple[Float[Tensor, " o"], Float[Tensor, " o"]] | None
    """All errors that can be, in order, and their probabilities; None where they are not told one by one."""

    def cdf(self, t: Array) -> Any:
        """P(eᵀ(Γ_n − Γ) ≤ t), for a number or an array of them. Where outcomes are not told one by one, half of a jump at t
        counts."""
        return _each(self._below, t)

    def cdf_error(self, t: Finite) -> float:
        """About how far off cdf(t) may be: what quadrature, an early end of the inversion and the steps of a lattice leave, 0 where
        outcomes are told one by one."""
        return 0.0 if self.outcomes is not None else self.keys.below(float(t)).error

    def exceeds(self, t: Array) -> Any:
        """P(|eᵀ(Γ_n − Γ)| > t), for t ≥ 0."""
        return _each(self._exceeds, t)

    def quantile(self, q: Array) -> Any:
        """The least t with P(eᵀ(Γ_n − Γ) ≤ t) ≥ q, 0 < q < 1."""
        return _each(self._quantile, q)

    def interval(self, level: Chance = 0.95) -> tuple[float, float]:
        """Where the error is with that probability, the rest shared equally between both sides."""
        return self._quantile((1 - level) / 2), self._quantile((1 + level) / 2)

    @property
    def std(self) -> float:
        """Standard deviation of eᵀΓ_n."""
        less, more = (max(0.0, self.rms + side * abs(self.bias)) for side in (-1, 1))
        return math.sqrt(less) * math.sqrt(more)  # squares might not be finite

    @cached_property
    def mean_abs(self) -> float:
        """E|eᵀ(Γ_n − Γ)| = |bias| + 2 ∫₀^∞ P(±eᵀ(Γ_n − Γ) > t) dt, on the side away from the bias, where less is: to 1e-5, and 1e-4 where
        few keys of a bounded law make a density with kinks."""
        if self.outcomes is not None:
            errors, chances = self.outcomes
            return float(errors.abs() @ chances)
        if self.rms == 0:
            return 0.0
        from scipy.integrate import quad  # slow to import

        def beyond(t: float) -> float:
            return self._below(-t) if self.bias > 0 else 1 - self._below(t)

        end = self.rms
        while beyond(end) > max(1e-8, self.cdf_error(-end if self.bias > 0 else end)):
            end *= 1.5
        # full output: what two halves leave is no reason for a warning
        side = quad(beyond, 0.0, end, epsabs=1e-5 * self.rms, epsrel=0.0, limit=2, full_output=True)[0]
        return float(abs(self.bias) + 2 * side)

    @cached_property
    def median_abs(self) -> float:
        """Median of |eᵀ(Γ_n − Γ)|."""
        if self.outcomes is not None:
            sizes, order = self.outcomes[0].abs().sort()
            return float(
                sizes[int((self.outcomes[1][order].cumsum(0) >= 0.5 - SAME).to(torch.int8).argmax())]
            )
        if self.rms == 0:
            return 0.0
        from scipy.optimize import brentq  # slow to import

        # Chebyshev: half of the errors are within √2 rms
        return float(
            brentq(lambda t: self._exceeds(t) - 0.5, 0.0, 1.5 * self.rms, xtol=1e-6 * self.rms, rtol=1e-5)
        )

    @cached_property
    def _known(self) -> dict[float, float]:
        """P(error ≤ t) wherever it was asked for: an inversion may take a tenth of a second."""
        return {}

    def _below(self, t: float) -> float:
        if self.outcomes is not None:
            errors, chances = self.outcomes
            return float(chances[errors <= t + SAME * max(abs(t), self.rms)].sum().clamp_max(1.0))
        if t not in self._known:
            self._known[t] = self._inverted(t)
        return self._known[t]

    def _inverted(self, t: float) -> float:
        chance, error = self.keys.below(t)
        if error > COARSE:
            raise NotKnown(
                f"P(error ≤ {t:.3g}) of {self.n} keys is found to ±{error:.2g} only, as their characteristic function does not vanish: "
                "use larger n, or measure_convergence (Monte Carlo)."
            )
        return chance

    def _exceeds(self, t: float) -> float:
        if self.outcomes is None:
            return min(1.0, max(0.0, 1.0 - self._below(t) + self._below(-t)))
        errors, chances = self.outcomes
        return float(chances[errors.abs() > t + SAME * max(abs(t), self.rms)].sum().clamp_max(1.0))

    def _quantile(self, q: float) -> float:
        if not 0 < q < 1:
            raise InputError(f"q must be a probability between 0 and 1, got {q!r}.")
        if self.outcomes is not None:
            errors, chances = self.outcomes
            return float(errors[int((chances.cumsum(0) >= q - SAME).to(torch.int8).argmax())])
        if self.std == 0:
            return self.bias
        if not FAINT <= q <= 1 - FAINT:
            raise NotKnown(
                f"Probabilities are found by inversion to about {FAINT:g}, and the quantile at q = {q:g} is beyond: use {FAINT:g} ≤ q ≤ "
                f"1 − {FAINT:g}."
            )
        from scipy.optimize import brentq  # slow to import

        wanted = float(scipy.special.ndtri(q))

        def beyond(t: float) -> float:  # nearly a straight line
            return float(scipy.special.ndtri(min(max(self._below(t), 1e-15), 1 - 1e-15))) - wanted

        normal, step = self.bias + wanted * self.std, 0.1 * self.std
        low = max((t for t, chance in self._known.items() if chance < q), default=normal)
        high = min((t for t, chance in self._known.items() if chance >= q), default=normal)
        while beyond(low) > 0:
            low, step = low - step, 2 * step
        while beyond(high) < 0:
            high, step = high + step, 2 * step
        return low if low == high else float(brentq(beyond, low, high, xtol=1e-7 * self.std))

    def to_dict(self) -> dict[str, Any]:
        """Moments and quantiles as JSON knows them."""
        quantiles = {f"{q:g}": self._quantile(q) for q in SHOWN}
        names = ("n", "limit", "bias", "rms", "std", "mean_abs", "method")
        return {name: getattr(self, name) for name in names} | {"quantiles": quantiles}

    def __repr__(self) -> str:
        return f"ErrorLaw(n = {self.n:,}, bias {self.bias:.3g}, std {self.std:.3g}; {self.method})"


def _each(one: Callable[[float], float], values: Array) -> Any:
    given = as_float(values, "values")
    if isinstance(values, int | float | np.number):
        return one(float(values))
    return torch.tensor([one(value) for value in given.flatten().tolist()], dtype=torch.float64).reshape(
        given.shape
    )


def error_law(
    head: Head,
    measure: Measure,
    n: int,
    query: Array,
    direction: Array | None = None,
    *,
    sampling: Sampling = PLAIN,
    positions: int | Sequence[int] | Tensor | None = None,
) -> ErrorLaw:
    """P(eᵀ(Γ_n − Γ) ≤ t) = ½ − (1/π) ∫₀^∞ Im E e^{iλ Σ w(eᵀ(v − Γ) − t)} dλ/λ, the sum over n drawn keys (and those kept).

    `direction` e has an entry for each output, and may be left out where there is one. Laws with a projected form, and populations with
    any `sampling` that `exact_error` knows; `positions` is the query's own place among the keys. Where at most 2²⁰ outcomes are
    possible they are told one by one, so that jumps are where they are.

    >>> from attnlimit import Gaussian, Head, error_law
    >>> law = error_law(Head([[2.0]]), Gaussian(dim=1), n=100, query=[1.0])
    >>> [round(value, 4) for value in law.interval(0.9)]
    [-0.8241, 0.5797]
    """
    if head.heads:
        raise InputError(f"error_law takes one head at a time, got {head!r}: use head.each().")
    head.check_fits(measure)
    (size,), x = as_sizes(n), head.checked(query)
    if x.ndim != 1 and len(x.reshape(-1, head.query_dim)) != 1:
        raise InputError(f"error_law takes one query, a vector, got shape {tuple(x.shape)}.")
    return law_at(along(head, measure, direction), measure, x.reshape(1, -1), sampling, _places(positions))(
        size
    )


def along(head: Head, measure: Measure, direction: Array | None) -> Head:
    """The head with one output, which is that in a direction."""
    if direction is not None:
        head = head.along(direction)
        head.check_fits(measure)
        return head
    outputs = measure.value_dim if head.factors.V is None else head.factors.V.shape[-2]
    if outputs != 1:
        raise InputError(
            f"The law of the error is that of one output, and there are {outputs}: give direction=, a vector with as many entries."
        )
    return head


def law_at(
    head: Head, measure: Measure, x: Float[Tensor, "1 dq"], sampling: Sampling, positions: Tensor | None
) -> Callable[[int], ErrorLaw]:
    """The law at every n, for a head with one output."""
    here = rest_of(head, measure, x, sampling, positions, finer=FINE)

    def at(n: int) -> ErrorLaw:
        moments = prepare(head, measure, x, n, sampling, positions=positions, binned=False)
        size = torch.tensor([[float(n)]], dtype=torch.float64)
        square, bias = moments.moments(size)
        keys = DrawnKeys(here, sampling.draw, n, float(sampling.stands_for(here.number, size)[0, 0]))
        few = keys.enumerated()
        how = "inversion of its characteristic function" if few is None else f"all {len(few[0]):,} outcomes"
        drawn = f", {sampling} of {len(measure.population)}" if measure.population is not None else ""
        limit = float(head(measure)(x).double()[0, 0])
        return ErrorLaw(
            n, limit, float(bias[0, 0, 0]), math.sqrt(float(square[0, 0])), f"exact ({how}){drawn}", keys, few
        )

    return at


def _places(positions: int | Sequence[int] | Tensor | None) -> Tensor | None:
    return None if positions is None else torch.as_tensor(positions).reshape(-1)
