"""Everything about a head, a measure and queries that all n share, computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs.coins import bernoulli_moments
from attnlimit.designs.kept import Kept
from attnlimit.errors import InputError
from attnlimit.exact.laws import project
from attnlimit.exact.populations import score_atoms
from attnlimit.measures import Empirical, Measure
from attnlimit.numerics.atoms import Atoms, KeptSet
from attnlimit.numerics.laplace import transforms
from attnlimit.numerics.threads import side_by_side

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
CHECKED_QUERIES = 2


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
    scores = head.query(x) @ head.keys(tokens.tokens).T
    mask = None if kept is None else _kept_mask(tokens, scores, kept, positions)
    least = len(tokens) if mask is None else int((~mask).sum(1).min())
    if scheme == "bernoulli" and n_max > least:
        raise InputError(f"Bernoulli sampling of n = {n_max} keys needs at least as many, got {least}.")
    values, mass = head.read_linear(tokens.values), tokens.probabilities
    return prepare_scores(
        scores, values, n_max, mass=mass, kept=mask, scheme=scheme, importance=importance, binned=binned
    )


def prepare_scores(
    scores: Float[Tensor, "m n"],
    values: Float[Tensor, "n p"],
    n_max: int,
    *,
    mass: Float[Tensor, " n"] | None = None,
    kept: Bool[Tensor, "m n"] | None = None,
    hidden: Bool[Tensor, "m n"] | None = None,
    sink: Float[Tensor, " m"] | None = None,
    scheme: Scheme = "iid",
    importance: bool = False,
    binned: bool = True,
) -> Prepared:
    """The same from the scores themselves, whatever made them: `hidden` keys are not seen by their query, `sink` is the
    score of a key without value, always kept. Bernoulli sampling of more keys than there are keeps them all."""
    m, keys = scores.shape
    mass = scores.new_full((keys,), 1 / keys) if mass is None else mass
    none = torch.zeros(1, 1, dtype=torch.bool, device=scores.device)
    skipped = (none if kept is None else kept) | (none if hidden is None else hidden)
    rest = (~skipped).expand(m, keys).sum(1, keepdim=True).double()
    if not bool((rest > 0).all()):
        raise InputError("Some query keeps every key that it sees: nothing is left to sample.")

    def ready(rows: slice, coarser: int = 1) -> Moments:
        here = [None if part is None else part[rows] for part in (kept, hidden, sink)]
        atoms, own = score_atoms(
            scores[rows],
            values,
            mass,
            kept=here[0],
            hidden=here[1],
            sink=here[2],
            binned=binned,
            coarser=coarser,
        )
        shared = None if scheme == "bernoulli" else transforms(atoms, own, n_max)

        def moments(n: Tensor) -> tuple[Tensor, Tensor]:
            count = rest[rows]
            scale = count / n if importance else torch.ones_like(count * n)
            if shared is None:
                return bernoulli_moments(
                    atoms, own, count, (n / count).clamp_max(1.0).expand(len(count), -1), scale
                )
            return shared.moments(n, scale)

        return moments

    everything = ready(slice(None)) if scheme == "bernoulli" or not binned else _in_parts(ready, m)
    how = {"iid": "with replacement", "bernoulli": "Bernoulli"}[scheme]
    method = (
        f"exact (Laplace quadrature), {keys} keys subsampled {how}{', binned by score' if binned else ''}"
    )
    if not binned:
        return Prepared(everything, method)
    few = min(CHECKED_QUERIES, m)
    return Prepared(everything, method, lambda n: ready(slice(few), coarser=2)(n)[0], few)


def _in_parts(ready: Callable[[slice], Moments], m: int) -> Moments:
    """The queries shared out over torch's threads."""
    parts = max(1, min(torch.get_num_threads(), m // 8))
    if parts == 1:
        return ready(slice(None))
    slices = [slice(m * k // parts, m * (k + 1) // parts) for k in range(parts)]
    each = side_by_side(ready, slices)

    def moments(n: Tensor) -> tuple[Tensor, Tensor]:
        found = [one(n if len(n) == 1 else n[rows]) for one, rows in zip(each, slices, strict=True)]
        return torch.cat([square for square, _ in found]), torch.cat([bias for _, bias in found])

    return moments


def _kept_mask(tokens: Empirical, scores: Tensor, kept: Kept, positions: Tensor | None) -> Tensor:
    if tokens.weights is not None:
        raise InputError("Kept sets are for equally weighted tokens.")
    return kept.mask(scores, positions)
