"""The exact mean square error of n-token attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs.kept import Kept
from attnlimit.errors import InputError
from attnlimit.exact.prepare import MOST_TOKENS, Scheme, Weight, prepare
from attnlimit.inputs import Array, as_counts
from attnlimit.measures import Measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class ExactError:
    """E‖Γ_n(x) − Γ(x)‖² for each query and n, without Monte Carlo. The mean (not square) error has no such
    formula: use measure_convergence for it."""

    n: tuple[int, ...]
    mean_square: Float[Tensor, "*heads queries n"]
    bias_square: Float[Tensor, "*heads queries n"]
    """‖E Γ_n − Γ‖²."""
    outputs: Callable[[], Float[Tensor, "*heads queries p"]]
    """Computes Γ(x)."""
    method: str
    halved: Callable[[], float] | None = None
    """Computes `bin_error`."""

    @cached_property
    def limit_square(self) -> Float[Tensor, "*heads queries"]:
        """‖Γ(x)‖², for relative errors."""
        return self.outputs().double().square().sum(-1)

    @cached_property
    def bin_error(self) -> float | None:
        """Largest relative effect on the error of halving the number of bins, over some queries (None: no bins)."""
        return None if self.halved is None else self.halved()

    @property
    def variance(self) -> Float[Tensor, "*heads queries n"]:
        """E‖Γ_n − E Γ_n‖²."""
        return (self.mean_square - self.bias_square).clamp_min(0)

    @property
    def rms(self) -> Float[Tensor, "*heads queries n"]:
        """√E‖Γ_n − Γ‖²."""
        return self.mean_square.sqrt()

    def plot(self) -> Figure:
        """The rms error of each query against n, on logarithmic axes."""
        return import_module("attnlimit.report.exact_error").exact_error_figure(self)  # a layer above

    def __repr__(self) -> str:
        return (
            f"ExactError({self.mean_square.shape[-2]} queries, n = {self.n[0]} … {self.n[-1]}, {self.method})"
        )

    def to_dict(self) -> dict[str, Any]:
        arrays = {
            name: getattr(self, name).tolist() for name in ("mean_square", "bias_square", "limit_square")
        }
        return {"n": list(self.n), **arrays, "method": self.method, "bin_error": self.bin_error}


def exact_error(
    head: Head,
    measure: Measure,
    n: int | Sequence[int],
    queries: Array,
    *,
    kept: Kept | None = None,
    positions: Sequence[int] | Tensor | None = None,
    scheme: Scheme = "iid",
    sampled_weight: Weight = 1,
    binned: bool | None = None,
) -> ExactError:
    """E‖Γ_n(x) − Γ(x)‖² = ∫ t {n E[w²‖u‖²e^{−tw}]φ^{n−1} + n(n−1)‖E[w u e^{−tw}]‖²φ^{n−2}} dt, for each query and n.

    Laws with a projected form (Gaussian, Sphere, Ball, Box and Rademacher along an axis, mixtures of these) are
    exact to quadrature precision for n up to 10^12. A population (Empirical) is subsampled: `scheme="iid"` draws n
    keys with replacement, "bernoulli" keeps each key with probability n over their number. `kept` keys are always
    there (`positions`: the queries' own places among the keys); with `sampled_weight="importance"` the sampled ones
    stand for all the others. Populations of more than 2,048 tokens are binned by score unless `binned` says
    otherwise; `bin_error` tells what this does.

    >>> from attnlimit import Gaussian, Head, exact_error
    >>> result = exact_error(Head([[2.0]]), Gaussian(dim=1), n=[10, 10**9], queries=[[1.0]])
    >>> [f"{value:.6g}" for value in result.mean_square[0].tolist()]
    ['0.999203', '2.72985e-07']
    """
    head.check_fits(measure)
    sizes = as_counts(n)
    if max(sizes) > MOST_TOKENS:
        raise InputError(f"n = {max(sizes):.3g} is beyond 10^12, where the quadrature is no longer tested.")
    x = head.checked(queries).reshape(-1, head.query_dim)
    if head.heads:
        return _stack(
            lambda: head(measure)(x),
            [
                exact_error(
                    one,
                    measure,
                    n,
                    x,
                    kept=kept,
                    positions=positions,
                    scheme=scheme,
                    sampled_weight=sampled_weight,
                    binned=binned,
                )
                for one in head.each()
            ],
            head.heads,
        )
    prepared = prepare(
        head,
        measure,
        x,
        max(sizes),
        kept=kept,
        positions=positions,
        scheme=scheme,
        sampled_weight=sampled_weight,
        binned=binned,
    )
    many = torch.tensor([sizes], dtype=torch.float64, device=x.device)
    square, bias = prepared.moments(many)

    def halved(coarser: Callable[[Tensor], Tensor]) -> float:
        few = square[: prepared.checked_rows]
        return float(((coarser(many) - few).abs() / few.clamp_min(1e-300)).max())

    check = None if prepared.coarser is None else partial(halved, prepared.coarser)
    return ExactError(
        tuple(sizes), square, bias.square().sum(-1), lambda: head(measure)(x), prepared.method, check
    )


def _stack(outputs: Callable[[], Tensor], each: list[ExactError], heads: torch.Size) -> ExactError:
    square, bias = (
        torch.stack([getattr(one, name) for one in each]).unflatten(0, heads)
        for name in ("mean_square", "bias_square")
    )
    checks = [one.halved for one in each if one.halved is not None]
    halved = (lambda: max(check() for check in checks)) if checks else None
    return ExactError(each[0].n, square, bias, outputs, each[0].method, halved)
