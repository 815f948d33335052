"""Token-sample complexity as a number: the least n that is close enough to infinitely many tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.exact.curve import query_average
from attnlimit.exact.prepare import MOST_TOKENS, prepare
from attnlimit.files.records import Recorded
from attnlimit.inputs import Array, as_positive
from attnlimit.measures import Measure

GRID = 33


@dataclass(frozen=True, eq=False)
class Complexity(Recorded):
    """n(ε), the least n with √(E‖Γ_n − Γ‖²) ≤ target."""

    also = ("exceeds",)

    n: int | None
    """For the query average, or the largest over the queries given; None where it exceeds 10^12."""
    per_query: tuple[int | None, ...] | None
    target: float
    """The error allowed, in the unit of the outputs."""
    scale: str
    """What a relative error is relative to."""
    method: str

    @property
    def exceeds(self) -> int | None:
        """What n is beyond, where it is not known."""
        return MOST_TOKENS if self.n is None else None

    def __repr__(self) -> str:
        return f"Complexity(n = {self}, error ≤ {self.target:.4g}; {self.method})"

    def __str__(self) -> str:
        return "more than 10^12" if self.n is None else f"{self.n:,}"


@door
def sample_complexity(
    head: Head,
    measure: Measure,
    *,
    rel_error: float | None = None,
    abs_error: float | None = None,
    queries: Array | None = None,
) -> Complexity:
    """n(ε) = min {n : √(E‖Γ_n − Γ‖²) ≤ ε·scale}, a whole number, by bisection on the exact curve.

    Without `queries` the error is averaged over x ~ measure (the `rms` of `curve`), and the scale of a relative error
    is (E_x‖Γ(x)‖²)^{1/2}; with them it is the root mean square of their outputs, and n is found for each query.

    >>> from attnlimit import Gaussian, Head, sample_complexity
    >>> sample_complexity(Head([[1.0]]), Gaussian(dim=1), rel_error=0.05).n
    18113
    """
    if (rel_error is None) == (abs_error is None):
        raise InputError("Give either rel_error (a share of the outputs' size) or abs_error (in their unit).")
    if queries is None:
        if measure.population is not None:
            raise InputError("A population has no law to draw queries from: give queries=.")
        average = query_average(head, measure, MOST_TOKENS)
        first = average([1]).rms
        target, scale = _target(rel_error, abs_error, first.scale or 0.0, "(E_x‖Γ(x)‖²)^(1/2)")

        def error(n: Tensor) -> Tensor:
            sizes, place = n[0].unique(return_inverse=True)
            return average([int(size) for size in sizes]).rms.error[place][None]

        found = _least(error, torch.tensor([target], dtype=torch.float64))
        return Complexity(found[0], None, target, scale, first.method)
    if head.heads:
        raise InputError(f"sample_complexity takes one head at a time, got {head!r}: use head.each().")
    head.check_fits(measure)
    x = head.rows(queries)
    size = float(head(measure)(x).double().square().sum(-1).mean().sqrt())
    target, scale = _target(rel_error, abs_error, size, "root mean square of Γ over the queries")
    prepared = prepare(head, measure, x, MOST_TOKENS)
    per_query = _least(
        lambda n: prepared.moments(n)[0].sqrt(), torch.full((len(x),), target, dtype=torch.float64)
    )
    worst = None if None in per_query else max(value for value in per_query if value is not None)
    return Complexity(worst, tuple(per_query), target, scale, prepared.method)


def _target(rel_error: float | None, abs_error: float | None, size: float, name: str) -> tuple[float, str]:
    if abs_error is not None:
        return as_positive(abs_error, "abs_error"), "absolute"
    target = as_positive(rel_error, "rel_error") * size
    if target == 0:
        raise InputError("The outputs are all zero, so no error is small relative to them: give abs_error.")
    return target, name


def _least(
    error: Callable[[Float[Tensor, "m k"]], Float[Tensor, "m k"]], target: Float[Tensor, " m"]
) -> list[int | None]:
    """The least n ≤ 10^12 with error(n) ≤ target, for each row: 33 points at a time between the last n that is too
    small and the first that is enough."""
    low = torch.zeros_like(target)
    high = torch.full_like(target, float(MOST_TOKENS))
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
