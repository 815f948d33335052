"""Token-sample complexity as a number: the least n that is close enough to infinitely many tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs import Sampling
from attnlimit.designs.sampling import PLAIN
from attnlimit.errors import InputError
from attnlimit.exact.curve import query_average
from attnlimit.exact.error_law import ErrorLaw, along, law_at
from attnlimit.exact.prepare import MOST_TOKENS, prepare, rest_of
from attnlimit.files.records import Recorded
from attnlimit.inputs import Array, Chance, as_positive
from attnlimit.measures import Measure

GRID = 33


@dataclass(frozen=True, eq=False)
class Complexity(Recorded):
    """n(ε), the least n with √(E‖Γ_n − Γ‖²) ≤ target, or n(ε, δ), that with P(|Γ_n − Γ| > target) ≤ δ."""

    also = ("exceeds",)

    n: int | None
    """For the query average, or the largest over the queries given; None where it exceeds 10^12."""
    per_query: tuple[int | None, ...] | None
    target: float
    """The error allowed, in the unit of the outputs."""
    scale: str
    """What a relative error is relative to."""
    method: str
    delta: float | None = None
    """Probability with which an error may exceed the target; None: the root of the mean square is what may not."""

    @property
    def exceeds(self) -> int | None:
        """What n is beyond, where it is not known."""
        return MOST_TOKENS if self.n is None else None

    def __repr__(self) -> str:
        chance = "" if self.delta is None else f" with probability {1 - self.delta:g}"
        return f"Complexity(n = {self}, error ≤ {self.target:.4g}{chance}; {self.method})"

    def __str__(self) -> str:
        return "more than 10^12" if self.n is None else f"{self.n:,}"


def sample_complexity(
    head: Head,
    measure: Measure,
    *,
    rel_error: float | None = None,
    abs_error: float | None = None,
    queries: Array | None = None,
    delta: Chance | None = None,
    sampling: Sampling = PLAIN,
    positions: Sequence[int] | Tensor | None = None,
) -> Complexity:
    """n(ε) = min {n : √(E‖Γ_n − Γ‖²) ≤ ε·scale}, a whole number, by bisection on the exact curve.

    Without `queries` the error is averaged over x ~ measure (the `rms` of `curve`), and the scale of a relative error
    is (E_x‖Γ(x)‖²)^{1/2}; with them it is the root mean square of their outputs, and n is found for each query, drawn of a population
    as `sampling` says.

    With `delta`, for heads with one output (`head.along(direction)`), it is n(ε, δ): P(|Γ_n − Γ| > ε·scale) ≤ δ at n, and more than
    δ at n − 1, by the exact law of the error (`error_law`).

    >>> from attnlimit import Gaussian, Head, sample_complexity
    >>> sample_complexity(Head([[1.0]]), Gaussian(dim=1), rel_error=0.05).n
    18113
    """
    if (rel_error is None) == (abs_error is None):
        raise InputError("Give either rel_error (a share of the outputs' size) or abs_error (in their unit).")
    if queries is None:
        if delta is not None or sampling != PLAIN:
            raise InputError("delta and sampling are for single queries: give queries=.")
        return _averaged(head, measure, rel_error, abs_error)
    if head.heads:
        raise InputError(f"sample_complexity takes one head at a time, got {head!r}: use head.each().")
    head.check_fits(measure)
    x = head.rows(queries)
    size = float(head(measure)(x).double().square().sum(-1).mean().sqrt())
    target, scale = _target(rel_error, abs_error, size, "root mean square of Γ over the queries")
    most = MOST_TOKENS
    if not sampling.draw.repeats:
        most = int(rest_of(head, measure, x, sampling, positions).number.min())
    prepared = prepare(head, measure, x, most, sampling, positions=positions)
    z = 1.0 if delta is None else -NormalDist().inv_cdf(delta / 2)
    goal = torch.full((len(x),), target / z, dtype=torch.float64)
    per_query = _least(lambda n: prepared.moments(n)[0].sqrt(), goal, most)
    if delta is not None:
        head = along(head, measure, None)
        where = [None] * len(x) if positions is None else list(torch.as_tensor(positions).split(1))
        laws = [law_at(head, measure, x[[k]], sampling, where[k]) for k in range(len(x))]
        per_query = [_sure(*one, target, delta, most) for one in zip(laws, per_query, strict=True)]
    worst = None if None in per_query else max(value for value in per_query if value is not None)
    method = prepared.method if delta is None else "exact law of the error, " + str(sampling)
    return Complexity(worst, tuple(per_query), target, scale, method, delta)


def _averaged(head: Head, law: Measure, rel_error: float | None, abs_error: float | None) -> Complexity:
    """For queries x ~ law."""
    if law.population is not None:
        raise InputError("A population has no law to draw queries from: give queries=.")
    average = query_average(head, law, MOST_TOKENS)
    first = average([1]).rms
    target, scale = _target(rel_error, abs_error, first.scale or 0.0, "(E_x‖Γ(x)‖²)^(1/2)")

    def error(n: Tensor) -> Tensor:
        sizes, place = n[0].unique(return_inverse=True)
        return average([int(size) for size in sizes]).rms.error[place][None]

    found = _least(error, torch.tensor([target], dtype=torch.float64))
    return Complexity(found[0], None, target, scale, first.method)


def _sure(
    law: Callable[[int], ErrorLaw], guess: int | None, target: float, delta: float, most: int
) -> int | None:
    """n with P(|error| > target) ≤ δ and more at n − 1: from the guess in steps that double, until between two n, then halves."""
    n = most if guess is None else guess
    low, high, step = 0, most + 1, max(1, n // 64)
    while high - low > 1:
        n = n if low < n < high else (low + high) // 2
        if law(n).exceeds(target) <= delta:
            high, n = n, n - step
        else:
            low, n = n, n + step
        step *= 2
    return None if high > most else high


def _target(rel_error: float | None, abs_error: float | None, size: float, name: str) -> tuple[float, str]:
    if abs_error is not None:
        return as_positive(abs_error, "abs_error"), "absolute"
    target = as_positive(rel_error, "rel_error") * size
    if target == 0:
        raise InputError("The outputs are all zero, so no error is small relative to them: give abs_error.")
    return target, name


def _least(
    error: Callable[[Float[Tensor, "m k"]], Float[Tensor, "m k"]],
    target: Float[Tensor, " m"],
    most: int = MOST_TOKENS,
) -> list[int | None]:
    """The least n ≤ most with error(n) ≤ target, for each row: 33 points at a time between the last n that is too
    small and the first that is enough."""
    low = torch.zeros_like(target)
    high = torch.full_like(target, float(most))
    reached = error(high[:, None])[:, 0] <= target
    while bool(((high - low) > 1).any()):
        share = torch.linspace(0, 1, GRID, dtype=torch.float64)
        grid = (low.clamp_min(1)[:, None] * (high / low.clamp_min(1))[:, None] ** share).round()
        grid = torch.maximum(torch.minimum(grid, high[:, None]), (low + 1)[:, None])
        enough = error(grid) <= target[:, None]
        enough[:, -1] = True
        first = enough.to(torch.int8).argmax(1, keepdim=True)
        high = grid.gather(1, first)[:, 0]
        before = grid.gather(1, (first - 1).clamp_min(0))[:, 0]
        low = torch.where(first[:, 0] > 0, torch.minimum(before, high - 1), low)
        low = torch.where(first[:, 0] == 0, high - 1, low)  # grid starts at low + 1
    return [int(n) if ok else None for n, ok in zip(high.tolist(), reached.tolist(), strict=True)]
