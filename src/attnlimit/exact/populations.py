"""What queries see of a population of keys, and its score atoms, binned so that a whole curve costs about one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.numerics.atoms import Atoms, KeptSet
from attnlimit.numerics.binning import bin_by_score
from attnlimit.numerics.condensed import Condensed, condensed_bins

WIDTH = 0.1
"""Score width of a bin: weights within it agree to 5 %, and the error is of second order in that (0.1 to 0.4 %)."""
MOST_BINS = 4096


@dataclass(frozen=True, eq=False)
class Seen:
    """What m queries see of n keys, whatever made the scores."""

    scores: Float[Tensor, "m n"]
    values: Float[Tensor, "n p"] | Float[Tensor, "m n p"]
    """Of each key, the same for all queries or as each query sees them."""
    hidden: Bool[Tensor, "m n"] | None = None
    """Keys that are not there for a query."""
    sink: Float[Tensor, " m"] | None = None
    """Score of a key without value, which every query keeps."""
    mass: Float[Tensor, " n"] | None = None
    """Probability of each key (None: all alike)."""
    kept: Bool[Tensor, "m n"] | None = None
    """Keys that are kept besides those that a sampling keeps, chosen by whatever means."""

    @property
    def probability(self) -> Float[Tensor, " n"]:
        n = self.scores.shape[1]
        return self.scores.new_full((n,), 1 / n) if self.mass is None else self.mass

    def __getitem__(self, rows: slice | Tensor) -> Seen:
        """Some of the queries."""
        hidden, sink, kept = (
            None if part is None else part[rows] for part in (self.hidden, self.sink, self.kept)
        )
        values = self.values if self.values.ndim == 2 else self.values[rows]
        return Seen(self.scores[rows], values, hidden, sink, self.mass, kept)

    def __len__(self) -> int:
        return len(self.scores)

    def atoms(
        self, kept: Bool[Tensor, "m n"] | None, *, binned: bool = True, coarser: int = 1
    ) -> tuple[Atoms | Condensed, KeptSet | None]:
        """Atoms of the keys that a query draws from, with values relative to their mean, and the set of those it always
        keeps. `coarser` widens the bins."""
        values = self.values if self.values.ndim == 3 else self.values[None]
        centre = values.mean(1)
        values = values - centre[:, None]  # errors are differences: centring only saves digits
        scores = self.scores if self.hidden is None else self.scores.masked_fill(self.hidden, -torch.inf)
        limit = self._limit(scores, values, -centre)
        kept_set = None
        if kept is not None or self.sink is not None:
            kept_set = self._kept_set(scores, values, -centre, limit, kept)
        skipped = kept if self.hidden is None else self.hidden if kept is None else self.hidden | kept
        if binned:
            return _bins(scores, values, limit, self.probability, skipped, coarser), kept_set
        log_mass = self.probability.log().expand_as(scores)
        if skipped is not None:
            log_mass = log_mass.masked_fill(skipped, -torch.inf)
        flat = scores if self.hidden is None else scores.masked_fill(self.hidden, 0.0)
        atoms = Atoms(flat, log_mass.log_softmax(1), values, torch.zeros_like(values[..., 0]), limit)
        return atoms.double(), kept_set

    def _limit(self, scores: Tensor, values: Tensor, nothing: Tensor) -> Tensor:
        """Γ: softmax over all that is seen, the sink's value being `nothing`."""
        if self.mass is not None and not bool((self.mass == self.mass[0]).all()):
            scores = scores + self.mass.log() - self.mass.mean().log()
        if self.sink is None:
            return _averages(scores.softmax(1), values)
        p = torch.cat([scores, self.sink[:, None]], 1).softmax(1)
        return _averages(p[:, :-1], values) + p[:, -1:] * nothing

    def _kept_set(
        self, scores: Tensor, values: Tensor, nothing: Tensor, limit: Tensor, kept: Tensor | None
    ) -> KeptSet:
        inside = (
            torch.full_like(scores, -torch.inf) if kept is None else scores.masked_fill(~kept, -torch.inf)
        )
        if self.sink is not None:
            inside = torch.cat([inside, self.sink[:, None]], 1)
            values = torch.cat([values, nothing[:, None]], 1)
        inside = inside.double()
        log_weight = torch.logsumexp(inside, 1)
        empty = log_weight == -torch.inf
        share = torch.exp(inside - log_weight.masked_fill(empty, 0.0)[:, None])
        error = (_averages(share, values.double()) - limit.double()).masked_fill(empty[:, None], 0.0)
        return KeptSet(log_weight, error)


def _averages(weights: Float[Tensor, "m n"], values: Float[Tensor, "#m n p"]) -> Float[Tensor, "m p"]:
    """Σ_j w_j v_j for each query."""
    return weights @ values[0] if len(values) == 1 else (weights[:, None] @ values)[:, 0]


def _bins(
    scores: Tensor, values: Tensor, limit: Tensor, mass: Tensor, skipped: Tensor | None, coarser: int
) -> Condensed:
    """Bins that keep Σ1, Σw, Σw u and Σw²‖u‖² exactly, so the central limit theorem is exact; only e^{−tw} is
    taken at the bin's mean weight. They are condensed at once."""
    low, high = scores.amin(1), scores.amax(1)
    if skipped is not None:  # hidden keys have score −∞
        low = scores.masked_fill(scores == -torch.inf, torch.inf).amin(1)
    count = int(((high - low).max() / (WIDTH * coarser)).ceil().clamp(8, MOST_BINS // coarser))
    width = ((high - low) / count).clamp_min(1e-6)
    sums = bin_by_score(scores, low, width, count, values, limit, mass, skipped)
    return condensed_bins(sums, low, width, limit, _left(scores, skipped))


def _left(scores: Tensor, skipped: Tensor | None) -> Float[Tensor, "m 1"]:
    """How many keys there are to draw from."""
    every = scores.new_full((len(scores), 1), scores.shape[1], dtype=torch.float64)
    return every if skipped is None else every - skipped.sum(1, keepdim=True)
