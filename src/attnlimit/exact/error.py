"""The exact mean square error of n-token attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError
from attnlimit.exact.atoms import Atoms, KeptSet
from attnlimit.exact.bernoulli import bernoulli_moments
from attnlimit.exact.kept import Kept
from attnlimit.exact.laplace import transforms
from attnlimit.exact.laws import project
from attnlimit.exact.populations import population
from attnlimit.measures import Empirical, Measure
from attnlimit.numerics.inputs import Array, as_counts

MOST_TOKENS = 10**12
"""The quadrature is tested up to here."""
QUERIES_AT_ONCE = 16
BIN_ABOVE = 2048
"""Smaller populations take every token as an atom of its own."""


@dataclass(frozen=True, eq=False)
class ExactError:
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

    def __repr__(self) -> str:
        return (
            f"ExactError({self.mean_square.shape[-2]} queries, n = {self.n[0]} … {self.n[-1]}, {self.method})"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": list(self.n),
            "mean_square": self.mean_square.tolist(),
            "bias_square": self.bias_square.tolist(),
            "limit_square": self.limit_square.tolist(),
            "method": self.method,
            "bin_error": self.bin_error,
        }


def exact_error(
    head: Head,
    measure: Measure,
    n: int | Sequence[int],
    queries: Array,
    *,
    kept: Kept | None = None,
    positions: Sequence[int] | Tensor | None = None,
    scheme: Literal["iid", "bernoulli"] = "iid",
    sampled_weight: Literal[1, "importance"] = 1,
    binned: bool | None = None,
) -> ExactError:
    """E‖Γ_n(x) − Γ(x)‖² = ∫ t {n E[w²‖u‖²e^{−tw}]φ^{n−1} + n(n−1)‖E[w u e^{−tw}]‖²φ^{n−2}} dt, for each query and n.

    Laws with a projected form (Gaussian, Sphere, Ball, Box and Rademacher along an axis, mixtures of these) are
    exact to quadrature precision for n up to 10^12. A population (Empirical) is subsampled: `scheme="iid"` draws n
    keys with replacement, "bernoulli" keeps each key with probability n over their number. `kept` keys are always
    there; with `sampled_weight="importance"` the sampled ones stand for all the others. Populations of more than
    2,048 tokens are binned by score unless `binned` says otherwise; `bin_error` tells what this does.

    >>> from attnlimit import Gaussian, Head, exact_error
    >>> result = exact_error(Head([[2.0]]), Gaussian(dim=1), n=[10, 10**9], queries=[[1.0]])
    >>> [f"{value:.6g}" for value in result.mean_square[0].tolist()]
    ['0.999203', '2.72985e-07']
    """
    head.check_fits(measure)
    sizes = as_counts(n)
    if max(sizes) > MOST_TOKENS:
        raise InputError(f"n = {max(sizes):.3g} is beyond 10^12, where the quadrature is no longer tested.")
    if scheme not in ("iid", "bernoulli"):
        raise InputError(f"scheme must be 'iid' or 'bernoulli', got {scheme!r}.")
    if sampled_weight not in (1, "importance"):
        raise InputError(f"sampled_weight must be 1 or 'importance', got {sampled_weight!r}.")
    x = head.checked(queries).reshape(-1, head.query_dim)
    if head.heads:
        each = [
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
        ]
        return _stack(each, head.heads)
    if isinstance(measure, Empirical):
        where = None if positions is None else torch.as_tensor(positions, device=x.device)
        binned = len(measure) > BIN_ABOVE if binned is None else binned
        return _subsampled(
            head, measure, sizes, x, kept, where, scheme, sampled_weight == "importance", binned
        )
    if scheme == "bernoulli" or sampled_weight == "importance":
        raise InputError(
            f"{measure!r} is a law with infinitely many keys: Bernoulli and importance weights are for populations."
        )
    square, bias = _of_law(head, measure, sizes, x, kept)
    limit = head(measure)(x)
    return ExactError(
        tuple(sizes), square, bias.square().sum(-1), limit.square().sum(-1), "exact, Laplace quadrature"
    )


def _of_law(
    head: Head, law: Measure, sizes: list[int], x: Tensor, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    """Queries of similar score spread go together, since the spread sets the size of the grids."""
    order = head.score_vector(x).norm(dim=-1).argsort()
    squares, biases = [], []
    for rows in order.split(QUERIES_AT_ONCE):
        atoms, own = of_law(head, law, x[rows], kept)
        square, bias = transforms(atoms, max(sizes), own).moments(_row(sizes, atoms))
        squares.append(square)
        biases.append(bias)
    back = order.argsort()
    return torch.cat(squares)[back], torch.cat(biases)[back]


def of_law(head: Head, law: Measure, x: Tensor, kept: Kept | None) -> tuple[Atoms, KeptSet | None]:
    """Score atoms of a law at queries x, and the own token when it is kept (self-attention)."""
    a = head.score_vector(x)
    atoms = project(law, a, head).double()
    if kept is None or kept == Kept():
        return atoms, None
    if kept != Kept(own=True):
        raise InputError(f"A law has no order: only the own token can be kept, Kept(own=True), got {kept}.")
    if head.query_dim != law.dim:
        raise InputError("Keeping the own token needs queries that are tokens, of the keys' dimension.")
    return atoms, KeptSet((a * x).sum(-1).double(), head.read_linear(x).double() - atoms.limit)


def _subsampled(
    head: Head,
    tokens: Empirical,
    sizes: list[int],
    x: Tensor,
    kept: Kept | None,
    positions: Tensor | None,
    scheme: str,
    importance: bool,
    binned: bool,
) -> ExactError:
    q = head.query(x)
    mask = None
    if kept is not None and kept != Kept():
        mask = kept.mask(q @ head.keys(tokens.tokens).T, positions)
        if tokens.weights is not None:
            raise InputError("Kept sets are for equally weighted tokens.")
        if bool(mask.all(1).any()):
            raise InputError(f"{kept} keeps every key of some query: nothing is left to sample.")
    rest = torch.full((len(x),), float(len(tokens))).double() if mask is None else (~mask).sum(1).double()
    if scheme == "bernoulli" and max(sizes) > float(rest.min()):
        raise InputError(
            f"Bernoulli sampling of n = {max(sizes)} keys needs at least as many, got {int(rest.min())}."
        )

    def moments(rows: slice, coarser: int = 1) -> tuple[Tensor, Tensor]:
        atoms, own = population(
            tokens, q[rows], head, None if mask is None else mask[rows], binned=binned, coarser=coarser
        )
        many = _row(sizes, atoms)
        scale = rest[rows, None] / many if importance else torch.ones_like(rest[rows, None] * many)
        if scheme == "bernoulli":
            return bernoulli_moments(atoms, own, rest[rows], many / rest[rows, None], scale)
        return transforms(atoms, max(sizes), own).moments(many, scale)

    square, bias = moments(slice(None))
    bin_error = None
    if binned:
        few = slice(0, 4)
        change = (moments(few, coarser=2)[0] - square[few]).abs() / square[few].clamp_min(1e-300)
        bin_error = float(change.max())
    how = {"iid": "with replacement", "bernoulli": "Bernoulli"}[scheme]
    text = f"exact, Laplace quadrature, {len(tokens)} keys subsampled {how}{', binned by score' if binned else ''}"
    limit = head(tokens)(x).double().square().sum(-1)
    return ExactError(tuple(sizes), square, bias.square().sum(-1), limit, text, bin_error)


def _row(sizes: list[int], atoms: Atoms) -> Tensor:
    return torch.tensor([sizes], dtype=torch.float64, device=atoms.scores.device)


def _stack(each: list[ExactError], heads: torch.Size) -> ExactError:
    bins = [one.bin_error for one in each if one.bin_error is not None]
    return ExactError(
        each[0].n,
        torch.stack([one.mean_square for one in each]).unflatten(0, heads),
        torch.stack([one.bias_square for one in each]).unflatten(0, heads),
        torch.stack([one.limit_square for one in each]).unflatten(0, heads),
        each[0].method,
        max(bins) if bins else None,
    )
