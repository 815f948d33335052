"""What queries see of a population of keys, and its score atoms, binned so that a whole curve costs about one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.numerics.atoms import Atoms, KeptSet
from attnlimit.numerics.binning import Scored
from attnlimit.numerics.condensed import Condensed, condensed_keys


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
        if self.values.ndim == 3:
            return Seen(self.scores[rows], self.values[rows], hidden, sink, self.mass, kept)
        return self.scored(self.scores[rows], hidden=hidden, sink=sink, kept=kept)

    def scored(self, scores: Float[Tensor, "k n"], **seen: Tensor | None) -> Seen:
        """What other queries see of the same values."""
        found = Seen(scores, self.values, mass=self.mass, **seen)
        vars(found).update(centre=self.centre, _centred=self._centred)
        return found

    def __len__(self) -> int:
        return len(self.scores)

    @cached_property
    def centre(self) -> Float[Tensor, "#m p"]:
        """Mean value. Errors are differences: taking it off saves digits."""
        return self._values.mean(1)

    @cached_property
    def _centred(self) -> tuple[Float[Tensor, "#m n p"], Float[Tensor, "#m n"]]:
        """Values relative to their centre, and their squares."""
        values = self._values - self.centre[:, None]
        return values, torch.linalg.vector_norm(values, dim=-1).square()

    @property
    def _values(self) -> Float[Tensor, "#m n p"]:
        return self.values if self.values.ndim == 3 else self.values[None]

    def atoms(self, kept: Bool[Tensor, "m n"] | None) -> tuple[Atoms, KeptSet | None]:
        """The keys that a query draws from, with values relative to their centre, and the set of those it always keeps."""
        scores, values, limit, kept_set, skipped = self._parts(kept)
        log_mass = self.probability.log().expand_as(scores)
        if skipped is not None:
            log_mass = log_mass.masked_fill(skipped, -torch.inf)
        flat = scores if self.hidden is None else scores.masked_fill(self.hidden, 0.0)
        atoms = Atoms(flat, log_mass.log_softmax(1), values, torch.zeros_like(values[..., 0]), limit)
        return atoms.double(), kept_set

    def binned(
        self, kept: Bool[Tensor, "m n"] | None, spacing: float, again: int = 0
    ) -> tuple[Condensed, KeptSet | None, Float[Tensor, "m p"]]:
        """The same in bins that keep Σ1, Σw, Σw u and Σw²‖u‖² exactly, so the central limit theorem is exact; only e^{−tw} is
        taken at a bin's mean weight. Of the first `again` queries once more after all, with half the bins. And Γ."""
        scores, _, limit, kept_set, skipped = self._parts(kept)
        keys = Scored(scores, *self._centred, limit, self.probability, skipped)
        if kept_set is not None:
            kept_set = KeptSet(*(torch.cat([part, part[:again]]) for part in kept_set))
        return condensed_keys(keys, spacing, again), kept_set, limit

    def _parts(
        self, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, KeptSet | None, Bool[Tensor, "m n"] | None]:
        """Scores, values and Γ relative to their centre, what is kept, and the keys that are not drawn."""
        values = self._centred[0]
        scores = self.scores if self.hidden is None else self.scores.masked_fill(self.hidden, -torch.inf)
        limit = self._limit(scores, values, -self.centre)
        kept_set = None
        if kept is not None or self.sink is not None:
            kept_set = self._kept_set(scores, values, -self.centre, limit, kept)
        skipped = kept if self.hidden is None else self.hidden if kept is None else self.hidden | kept
        return scores, values, limit, kept_set, skipped

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
