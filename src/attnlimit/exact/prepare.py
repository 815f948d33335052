"""Everything about a head, a measure and queries that all n share, computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

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

Scheme: TypeAlias = str
"""How a population is subsampled: iid or bernoulli."""
Weight: TypeAlias = int | str
"""1, or importance: the sampled keys stand for all that are not kept."""
Moments: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""n (1 or m, k) ↦ E‖Γ_n − Γ‖² (m, k) and E Γ_n − Γ (m, k, p)."""

MOST_TOKENS = 10**12
"""The quadrature is tested up to here."""
BIN_ABOVE = 2048
"""Smaller populations take every token as an atom of its own."""
QUERIES_AT_ONCE = 16
CHECKED_QUERIES = 4


@dataclass(frozen=True, eq=False)
class Prepared:
    """The moments of Γ_n − Γ as functions of n."""

    moments: Moments
    method: str
    coarser: Callable[[Tensor], Tensor] | None = None
    """The same mean squares with half the bins, for the first `checked_rows` queries."""
    checked_rows: int = 0


def prepare(
    head: Head,
    measure: Measure,
    x: Float[Tensor, "m dq"],
    n_max: int,
    *,
    kept: Kept | None = None,
    positions: Sequence[int] | Tensor | None = None,
    scheme: Scheme = "iid",
    sampled_weight: Weight = 1,
    binned: bool | None = None,
) -> Prepared:
    """For one head, queries x (m, d_query) and every n from 1 to n_max; the options are those of `exact_error`."""
    if scheme not in ("iid", "bernoulli"):
        raise InputError(f"scheme must be 'iid' or 'bernoulli', got {scheme!r}.")
    if sampled_weight not in (1, "importance"):
        raise InputError(f"sampled_weight must be 1 or 'importance', got {sampled_weight!r}.")
    kept = None if kept == Kept() else kept
    if isinstance(measure, Empirical):
        where = None if positions is None else torch.as_tensor(positions, device=x.device)
        binned = len(measure) > BIN_ABOVE if binned is None else binned
        return _subsampled(
            head, measure, x, n_max, kept, where, scheme, sampled_weight == "importance", binned
        )
    if scheme == "bernoulli" or sampled_weight == "importance":
        raise InputError(
            f"{measure!r} is a law with infinitely many keys: Bernoulli and importance weights are for populations."
        )
    return Prepared(_of_law(head, measure, x, n_max, kept), "exact (Laplace quadrature)")


def _of_law(head: Head, law: Measure, x: Tensor, n_max: int, kept: Kept | None) -> Moments:
    """Queries of similar score spread go together, since the spread sets the size of the grids."""
    order = head.score_vector(x).norm(dim=-1).argsort()
    groups = order.split(QUERIES_AT_ONCE)
    ready = [transforms(*_law_atoms(head, law, x[rows], kept), n_max) for rows in groups]
    back = order.argsort()

    def moments(n: Tensor) -> tuple[Tensor, Tensor]:
        each = [one.moments(n if len(n) == 1 else n[rows]) for one, rows in zip(ready, groups, strict=True)]
        return torch.cat([square for square, _ in each])[back], torch.cat([bias for _, bias in each])[back]

    return moments


def _law_atoms(head: Head, law: Measure, x: Tensor, kept: Kept | None) -> tuple[Atoms, KeptSet | None]:
    """Score atoms of a law at queries x, and the own token when it is kept (self-attention)."""
    a = head.score_vector(x)
    atoms = project(law, a, head).double()
    if kept is None:
        return atoms, None
    if kept != Kept(own=True):
        raise InputError(f"A law has no order: only the own token can be kept, Kept(own=True), got {kept}.")
    if head.query_dim != law.dim:
        raise InputError("Keeping the own token needs queries that are tokens, of the keys' dimension.")
    return atoms, KeptSet((a * x).sum(-1).double(), head.read_linear(x).double() - atoms.limit)


def _subsampled(
    head: Head,
    tokens: Empirical,
    x: Tensor,
    n_max: int,
    kept: Kept | None,
    positions: Tensor | None,
    scheme: Scheme,
    importance: bool,
    binned: bool,
) -> Prepared:
    q = head.query(x)
    mask = None if kept is None else _kept_mask(head, tokens, q, kept, positions)
    rest = torch.full((len(x), 1), float(len(tokens)), dtype=torch.float64, device=x.device)
    if mask is not None:
        rest = (~mask).sum(1, keepdim=True).double()
    if scheme == "bernoulli" and n_max > float(rest.min()):
        raise InputError(
            f"Bernoulli sampling of n = {n_max} keys needs at least as many, got {int(rest.min())}."
        )

    def ready(rows: slice, coarser: int = 1) -> Moments:
        here = None if mask is None else mask[rows]
        atoms, own = population(tokens, q[rows], head, here, binned=binned, coarser=coarser)
        shared = None if scheme == "bernoulli" else transforms(atoms, own, n_max)

        def moments(n: Tensor) -> tuple[Tensor, Tensor]:
            count = rest[rows]
            scale = count / n if importance else torch.ones_like(count * n)
            if shared is None:
                return bernoulli_moments(atoms, own, count, (n / count).expand(len(count), -1), scale)
            return shared.moments(n, scale)

        return moments

    how = {"iid": "with replacement", "bernoulli": "Bernoulli"}[scheme]
    method = f"exact (Laplace quadrature), {len(tokens)} keys subsampled {how}{', binned by score' if binned else ''}"
    if not binned:
        return Prepared(ready(slice(None)), method)
    few = min(CHECKED_QUERIES, len(x))
    return Prepared(ready(slice(None)), method, lambda n: ready(slice(few), coarser=2)(n)[0], few)


def _kept_mask(head: Head, tokens: Empirical, q: Tensor, kept: Kept, positions: Tensor | None) -> Tensor:
    if tokens.weights is not None:
        raise InputError("Kept sets are for equally weighted tokens.")
    mask = kept.mask(q @ head.keys(tokens.tokens).T, positions)
    if bool(mask.all(1).any()):
        raise InputError(f"{kept} keeps every key of some query: nothing is left to sample.")
    return mask
