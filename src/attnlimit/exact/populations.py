"""Score atoms of a population of tokens, binned by score so that a whole curve costs about one attention pass."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.numerics.atoms import Atoms, KeptSet, distances
from attnlimit.numerics.binning import bin_by_score

WIDTH = 0.1
"""Score width of a bin: weights within it agree to 5 %, and the error is of second order in that (0.1 to 0.4 %)."""
MOST_BINS = 4096
BINNED_STEP = 1.25
"""A coarser τ-grid, good to 1e-6, is enough beside the bins."""


def score_atoms(
    scores: Float[Tensor, "m n"],
    values: Float[Tensor, "n p"],
    mass: Float[Tensor, " n"],
    *,
    kept: Bool[Tensor, "m n"] | None = None,
    hidden: Bool[Tensor, "m n"] | None = None,
    sink: Float[Tensor, " m"] | None = None,
    binned: bool = True,
    coarser: int = 1,
) -> tuple[Atoms, KeptSet | None]:
    """Atoms of the keys that a query samples, and the set of those it always keeps.

    `hidden` keys are not there at all; `sink` is the score of a key without value. `coarser` widens the bins.
    """
    centre = values.mean(0)
    values = values - centre  # errors are differences: centring only saves digits
    seen = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    limit = _limit(seen, values, -centre, mass, sink)
    kept_set = None
    if kept is not None or sink is not None:
        kept_set = _kept_set(seen, values, -centre, limit, kept, sink)
    skipped = kept if hidden is None else hidden if kept is None else hidden | kept
    if binned:
        return _bins(seen, values, limit, mass, skipped, coarser), kept_set
    log_mass = mass.log().expand_as(scores)
    if skipped is not None:
        log_mass = log_mass.masked_fill(skipped, -torch.inf)
    flat = scores if hidden is None else scores.masked_fill(hidden, 0.0)
    atoms = Atoms(flat, log_mass.log_softmax(1), values[None], values.new_zeros(1, len(values)), limit)
    return atoms.double(), kept_set


def _limit(seen: Tensor, values: Tensor, nothing: Tensor, mass: Tensor, sink: Tensor | None) -> Tensor:
    """Γ: softmax over all that is seen, the sink's value being `nothing`."""
    scores = seen if bool((mass == mass[0]).all()) else seen + mass.log() - mass.mean().log()
    if sink is None:
        return scores.softmax(1) @ values
    p = torch.cat([scores, sink[:, None]], 1).softmax(1)
    return p[:, :-1] @ values + p[:, -1:] * nothing


def _kept_set(
    seen: Tensor, values: Tensor, nothing: Tensor, limit: Tensor, kept: Tensor | None, sink: Tensor | None
) -> KeptSet:
    inside = torch.full_like(seen, -torch.inf) if kept is None else seen.masked_fill(~kept, -torch.inf)
    if sink is not None:
        inside = torch.cat([inside, sink[:, None]], 1)
        values = torch.cat([values, nothing[None]])
    inside = inside.double()
    log_weight = torch.logsumexp(inside, 1)
    empty = log_weight == -torch.inf
    share = torch.exp(inside - log_weight.masked_fill(empty, 0.0)[:, None])
    return KeptSet(log_weight, (share @ values.double() - limit.double()).masked_fill(empty[:, None], 0.0))


def _bins(
    scores: Tensor, values: Tensor, limit: Tensor, mass: Tensor, skipped: Tensor | None, coarser: int
) -> Atoms:
    """Bins that keep Σ1, Σw, Σw u and Σw²‖u‖² exactly, so the central limit theorem is exact; only e^{−tw} is
    taken at the bin's mean weight."""
    low, high = torch.aminmax(scores, dim=1)
    if skipped is not None:  # hidden keys have score −∞
        low = scores.masked_fill(scores == -torch.inf, torch.inf).amin(1)
    count = int(((high - low).max() / (WIDTH * coarser)).ceil().clamp(8, MOST_BINS // coarser))
    width = ((high - low) / count).clamp_min(1e-6)
    sums = bin_by_score(scores, low, width, count, values, limit, mass, skipped)
    low, width, limit = low.double(), width.double(), limit.double()
    centres = low[:, None] + (torch.arange(count, device=low.device) + 0.5) * width[:, None]
    total, weight = sums.mass.double(), sums.weight.double()
    full = total > 0
    total, weight = torch.where(full, total, 1.0), torch.where(full, weight, 1.0)
    mean = sums.value.double().div_(weight[..., None])
    second = sums.square * total / weight.square()
    log_total = torch.where(full, total.log(), -torch.inf)
    return Atoms(
        centres + (weight / total).log(),
        log_total - torch.logsumexp(log_total, 1, keepdim=True),
        mean,
        second - distances(mean, limit),
        limit,
        smooth=BINNED_STEP,
    )
