"""The exact mean square error of n-token attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs import Sampling
from attnlimit.designs.sampling import PLAIN
from attnlimit.drawing import Drawn
from attnlimit.errors import InputError
from attnlimit.exact.prepare import MOST_TOKENS, Prepared, prepare_in_blocks
from attnlimit.files.records import Recorded
from attnlimit.inputs import Array, as_counts
from attnlimit.measures import Measure
from attnlimit.numerics.threads import side_by_side
from attnlimit.rates.error_curve import ErrorCurve


@dataclass(frozen=True, eq=False, repr=False)
class ExactError(Recorded, Drawn):
    """E‖Γ_n(x) − Γ(x)‖² for each query and n, without Monte Carlo. The mean (not square) error has no such
    formula: use measure_convergence for it."""

    n: tuple[int, ...]
    mean_square: Float[Tensor, "*heads queries n"]
    bias_square: Float[Tensor, "*heads queries n"]
    """‖E Γ_n − Γ‖²."""
    limit_square: Float[Tensor, "*heads queries"]
    """‖Γ(x)‖², for relative errors."""
    method: str
    bin_error: float | None = None
    """Largest relative effect on the error of halving the number of bins, over some queries (None: no bins)."""

    @property
    def variance(self) -> Float[Tensor, "*heads queries n"]:
        """E‖Γ_n − E Γ_n‖²."""
        return (self.mean_square - self.bias_square).clamp_min(0)

    @property
    def rms(self) -> Float[Tensor, "*heads queries n"]:
        """√E‖Γ_n − Γ‖²."""
        return self.mean_square.sqrt()

    def curve(self) -> ErrorCurve:
        """The root of the mean square over the queries."""
        if self.mean_square.ndim != 2:
            raise InputError("A curve is of one head: use head.each().")
        sizes = sorted(set(self.n))
        square = self.mean_square.mean(0)[[self.n.index(n) for n in sizes]]
        scale = float(self.limit_square.mean().sqrt())
        return ErrorCurve(tuple(sizes), square.sqrt(), method=self.method, scale=scale)

    def __repr__(self) -> str:
        return (
            f"ExactError({self.mean_square.shape[-2]} queries, n = {self.n[0]} … {self.n[-1]}, {self.method})"
        )


def exact_error(
    head: Head,
    measure: Measure,
    n: int | Sequence[int],
    queries: Array,
    *,
    sampling: Sampling = PLAIN,
    positions: Sequence[int] | Tensor | None = None,
    binned: bool | None = None,
) -> ExactError:
    """E‖Γ_n(x) − Γ(x)‖² = ∫ t {n E[w²‖u‖²e^{−tw}]φ^{n−1} + n(n−1)‖E[w u e^{−tw}]‖²φ^{n−2}} dt, for each query and n.

    Laws with a projected form (Gaussian, Sphere, Ball, Box and Rademacher along an axis, mixtures of these) are
    exact to quadrature precision for n up to 10^12. Of a population (Empirical) n keys are drawn as `sampling` says:
    independent ones unless told, different ones, or by coins; beside those it keeps (`positions`: the queries' own places
    among the keys); each as it is, or for all the rest. Populations of more than 2,048 tokens are binned by score unless
    `binned` says otherwise; `bin_error` tells what this does.

    >>> from attnlimit import Gaussian, Head, exact_error
    >>> result = exact_error(Head([[2.0]]), Gaussian(dim=1), n=[10, 10**9], queries=[[1.0]])
    >>> [f"{value:.6g}" for value in result.mean_square[0].tolist()]
    ['0.999203', '2.72985e-07']
    """
    head.check_fits(measure)
    sizes = as_sizes(n)
    how: dict[str, Any] = {"sampling": sampling, "positions": positions, "binned": binned}
    x = head.rows(queries)
    if head.heads:
        each = [exact_error(one, measure, n, x, **how) for one in head.each()]
        return _joined(each, lambda parts: torch.stack(parts).unflatten(0, head.heads))
    many = torch.tensor([sizes], dtype=torch.float64, device=x.device)

    def some(ready: Callable[[], Prepared]) -> ExactError:
        prepared = ready()
        square, bias, bin_error = prepared.with_check(many)
        limit = head(measure)(x) if prepared.limit is None else head.shifted(prepared.limit)
        squares = square, bias.square().sum(-1), limit.double().square().sum(-1)
        return ExactError(tuple(sizes), *squares, prepared.method, bin_error)

    rows, blocks = zip(*prepare_in_blocks(head, measure, x, max(sizes), **how), strict=True)
    back = torch.cat(rows).argsort()
    return _joined(side_by_side(some, blocks), lambda parts: torch.cat(parts)[back])


def as_sizes(n: object) -> list[int]:
    """One or several numbers of keys, none too large."""
    sizes = as_counts(n)
    if max(sizes) > MOST_TOKENS:
        raise InputError(f"n = {max(sizes):.3g} is beyond 10^12, where the quadrature is no longer tested.")
    return sizes


def _joined(each: list[ExactError], join: Callable[[list[Tensor]], Tensor]) -> ExactError:
    square, bias, limit = (
        join([getattr(one, name) for one in each]) for name in ("mean_square", "bias_square", "limit_square")
    )
    checks = [one.bin_error for one in each if one.bin_error is not None]
    return ExactError(each[0].n, square, bias, limit, each[0].method, max(checks) if checks else None)
