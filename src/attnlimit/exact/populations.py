"""Score atoms of a population of tokens, binned by score so that a whole curve costs about one attention pass."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.exact.atoms import Atoms, KeptSet
from attnlimit.measures import Empirical
from attnlimit.numerics.binning import BinSums, bin_by_score
from attnlimit.numerics.softmax import attend

WIDTH = 0.06
"""Score width of a bin: weights within it agree to 3 %, and the error is of second order in that."""
MOST_BINS = 4096


def population(
    law: Empirical,
    q: Float[Tensor, "m r"],
    head: Head,
    kept: Bool[Tensor, "m n"] | None = None,
    *,
    binned: bool = True,
    coarser: int = 1,
) -> tuple[Atoms, KeptSet | None]:
    """Atoms of the keys that are sampled, and the set of those always kept. `coarser` widens the bins."""
    keys, values = head.keys(law.tokens), head.read_linear(law.values)
    values = values - values.mean(0)  # errors are differences: centring only saves digits
    limit = attend(q, keys, values, law.log_weights).mean
    scores = q @ keys.T
    mass = law.probabilities
    kept_set = None if kept is None else _kept_set(scores, values, limit, kept)
    if binned:
        return _bins(scores, values, limit, mass, kept, coarser), kept_set
    log_mass = mass.log().expand_as(scores)
    log_mass = (log_mass if kept is None else log_mass.masked_fill(kept, -torch.inf)).log_softmax(1)
    return Atoms(scores, log_mass, values[None], values.new_zeros(1, len(law)), limit).double(), kept_set


def _kept_set(scores: Tensor, values: Tensor, limit: Tensor, kept: Tensor) -> KeptSet:
    inside = scores.double().masked_fill(~kept, -torch.inf)
    log_weight = torch.logsumexp(inside, 1)
    share = torch.exp(inside - log_weight.clamp_min(-1e300)[:, None])
    empty = ~kept.any(1)
    return KeptSet(log_weight, (share @ values.double() - limit.double()).masked_fill(empty[:, None], 0.0))


def _bins(
    scores: Tensor, values: Tensor, limit: Tensor, mass: Tensor, kept: Tensor | None, coarser: int
) -> Atoms:
    """Bins that keep Σ1, Σw, Σw u and Σw²‖u‖² exactly, so the central limit theorem is exact; only e^{−tw} is
    taken at the bin's mean weight."""
    low, high = torch.aminmax(scores, dim=1)
    count = int(((high - low).max() / (WIDTH * coarser)).ceil().clamp(8, MOST_BINS // coarser))
    width = ((high - low) / count).clamp_min(1e-6)
    distance = torch.addmm(values.square().sum(-1), limit, values.T, alpha=-2)
    distance.add_(limit.square().sum(-1, keepdim=True)).clamp_min_(0)
    sums = BinSums(
        *(part.double() for part in bin_by_score(scores, low, width, count, values, distance, mass, kept))
    )
    low, width, limit = low.double(), width.double(), limit.double()
    centres = low[:, None] + (torch.arange(count, device=low.device) + 0.5) * width[:, None]
    full = sums.mass > 0
    safe = torch.where(full, sums.mass, 1.0)
    weight = torch.where(full, sums.weight, 1.0)
    mean = torch.where(full[..., None], sums.value / weight[..., None], limit[:, None, :])
    second = sums.square * safe / weight.square()
    log_total = torch.where(full, safe.log(), -torch.inf)
    return Atoms(
        centres + (weight / safe).log(),
        log_total - torch.logsumexp(log_total, 1, keepdim=True),
        mean,
        second - (mean - limit[:, None, :]).square().sum(-1),
        limit,
    )
