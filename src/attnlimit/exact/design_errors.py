"""Where a way of choosing keys stands between uniform draws and the best ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs import Kept, Neyman, Sampling
from attnlimit.designs.chances import chance_moments
from attnlimit.designs.draw import Rest
from attnlimit.designs.neyman import neyman_strata
from attnlimit.errors import InputError
from attnlimit.exact.error import as_sizes
from attnlimit.exact.prepare import rest_of
from attnlimit.files.records import Recorded
from attnlimit.inputs import Array, as_float
from attnlimit.measures import Measure

WITHOUT: Kept = Kept()
ROUNDING = 1e-16
"""Relative error of what is no different from Γ."""


@dataclass(frozen=True, eq=False, repr=False)
class DesignErrors(Recorded):
    """E‖Γ_n − Γ‖² of designs that read n keys on average, for each query and n."""

    n: tuple[int, ...]
    uniform: Float[Tensor, "queries n"]
    """A coin of the same chance for every key."""
    given: Float[Tensor, "queries n"] | None
    """Chances in proportion to the sizes given."""
    strata: Float[Tensor, "queries n"]
    """Different keys of strata by score, allocated by the keys' own spreads (Neyman)."""
    best: Float[Tensor, "queries n"]
    """Chances in proportion to w_j‖v_j − Γ‖, which no heuristic knows."""
    method: str = "exact (Laplace quadrature)"

    @property
    def place(self) -> Float[Tensor, "queries n"]:
        """Of the given design, on the scale of log errors: 0 as uniform, 1 as best; below 0 it does harm."""
        if self.given is None:
            raise InputError("No design was given to be placed: give sizes=, one number a key.")
        return (self.uniform / self.given).log() / (self.uniform / self.best).log()

    def __repr__(self) -> str:
        gain = float((self.uniform / self.best).log().mean().exp())
        size = f"{len(self.best)} queries, n = {self.n[0]} … {self.n[-1]}"
        return f"DesignErrors({size}, best {gain:.3g} times less than uniform; {self.method})"


def design_errors(
    head: Head,
    measure: Measure,
    n: int | Sequence[int],
    queries: Array,
    *,
    sizes: Array | None = None,
    strata: int = 8,
    kept: Kept = WITHOUT,
    positions: Sequence[int] | Tensor | None = None,
) -> DesignErrors:
    """E‖Γ_n − Γ‖² where key j of a population is read with probability π_j and weighs 1/π_j, Σ π_j = n (Horvitz–Thompson).

    Uniform, π_j = n/R; given, π_j ∝ sizes_j, one a key or (queries, keys), whatever a heuristic makes of them; and best,
    π_j ∝ w_j‖v_j − Γ‖, all capped at 1. To first order the error is Σ (1/π_j − 1) p_j²‖v_j − Γ‖², and the last makes that
    least: Γ_n is a quotient, so that at few keys another design may be a little better still.

    >>> from attnlimit import Empirical, Gaussian, Head
    >>> found = design_errors(Head([[2.0]]), Gaussian(dim=1).sample(200, generator=0), 20, [[1.0]])
    >>> bool(found.best < 0.2 * found.uniform)
    True
    """
    head.check_fits(measure)
    if head.heads or measure.population is None or measure.population.weights is not None:
        raise InputError(
            f"design_errors takes one head and a population of equal keys (Empirical), got {head!r} and {measure!r}."
        )
    x = head.rows(queries)
    many = as_sizes(n)
    rest = rest_of(head, measure, x, Sampling(kept=kept), positions)
    if max(many) > float(rest.number.min()):
        raise InputError(
            f"n = {max(many)} keys were asked for, but only {int(rest.number.min())} are left to draw from."
        )
    atoms = rest.key_by_key("Designs")
    present = atoms.log_mass > -torch.inf
    error, scores = atoms.errors().norm(dim=-1), atoms.scores.where(present, -torch.inf)
    # a key that has all the attention is no different from Γ but for rounding, and is read all the same
    error = error.maximum(ROUNDING * error.amax(1, keepdim=True)).clamp_min(1e-300)
    best = error * (scores - scores.amax(1, keepdim=True)).exp()
    count = torch.tensor([many], dtype=torch.float64, device=x.device)
    stands_for = rest.number / count
    chances = {"uniform": torch.ones_like(best), "best": best}
    if sizes is not None:
        chances["given"] = _sizes(sizes, best)
    found = {name: chance_moments(rest, size, count, stands_for)[0] for name, size in chances.items()}
    return DesignErrors(
        tuple(many),
        found["uniform"],
        found.get("given"),
        _stratified(rest, present, count, strata),
        found["best"],
    )


def _sizes(sizes: Array, like: Tensor) -> Tensor:
    given = as_float(sizes, "sizes", dtype=torch.float64, device=like.device)
    if given.shape not in (like.shape, like.shape[1:]) or bool((given < 0).any()):
        raise InputError(
            f"sizes must be numbers of at least 0, one a key ({like.shape[1]}) or a query and key {tuple(like.shape)}; got "
            f"shape {tuple(given.shape)}."
        )
    given = given.expand_as(like)
    if not bool((given.sum(1) > 0).all()):
        raise InputError(
            "sizes must be above 0 for some key of every query: all zero, nothing would be read."
        )
    return given


def _stratified(rest: Rest, present: Tensor, n: Tensor, count: int) -> Tensor:
    found = torch.zeros(len(present), n.shape[1], dtype=torch.float64, device=n.device)
    for i, there in enumerate(present):
        row = rest.of(torch.arange(len(present), device=n.device) == i)
        atoms = row.key_by_key("Strata")
        scores = atoms.scores[0, there]
        parts = (scores - scores.max()).exp()[:, None] * (atoms.mean[0] - atoms.limit)[there]
        for k, size in enumerate(n[0].tolist()):
            strata, spread = neyman_strata(scores, parts, min(count, int(size)))
            everywhere = torch.zeros(len(there), dtype=torch.long, device=n.device)
            everywhere[there] = torch.tensor(strata, device=n.device)
            draw = Neyman(tuple(everywhere.tolist()), spread)
            size = n[:, k : k + 1]
            found[i, k] = draw.exact(row, int(size))(size, row.number / size)[0]
    return found
