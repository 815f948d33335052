"""Score atoms of a population of tokens, binned by score so that a whole curve costs about one attention pass."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.exact.atoms import Atoms, KeptSet
from attnlimit.measures import Empirical
from attnlimit.numerics.binning import bin_sums
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
    log_mass = None if law.weights is None else law.weights.log()
    kept_set = None
    if kept is not None:
        kept_set = _kept_set(scores, values, limit, kept)
    if binned:
        atoms = _bins(scores, values, limit, log_mass, kept, coarser)
    else:
        mass = scores.new_zeros(1, len(law)) if log_mass is None else log_mass[None]
        mass = mass.expand_as(scores) if kept is None else mass.masked_fill(kept, -torch.inf)
        atoms = Atoms(scores, mass.log_softmax(1), values[None], values.new_zeros(1, len(law)), limit)
    return atoms.double(), kept_set


def _kept_set(scores: Tensor, values: Tensor, limit: Tensor, kept: Tensor) -> KeptSet:
    inside = scores.double().masked_fill(~kept, -torch.inf)
    log_weight = torch.logsumexp(inside, 1)
    share = torch.exp(inside - log_weight.clamp_min(-1e300)[:, None])
    empty = ~kept.any(1)
    return KeptSet(log_weight, (share @ values.double() - limit.double()).masked_fill(empty[:, None], 0.0))


def _bins(
    scores: Tensor, values: Tensor, limit: Tensor, log_mass: Tensor | None, kept: Tensor | None, coarser: int
) -> Atoms:
    """Bins that keep Σ1, Σw, Σw u and Σw²‖u‖² exactly, so the central limit theorem is exact; only e^{−tw} is
    taken at the bin's mean weight."""
    low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    count = int(((high - low).max() / (WIDTH * coarser)).ceil().clamp(8, MOST_BINS // coarser))
    width = ((high - low) / count).clamp_min(torch.finfo(scores.dtype).tiny)
    bins = ((scores - low) / width).clamp_max_(count - 1).to(torch.int32)
    centres = low + (torch.arange(count, device=scores.device) + 0.5) * width
    weight = torch.exp(scores - centres.gather(1, bins.long()))
    distance = values.square().sum(-1) - 2 * limit @ values.T + limit.square().sum(-1, keepdim=True)
    mass = torch.ones_like(scores) if log_mass is None else log_mass.exp().expand_as(scores)
    if kept is not None:
        bins = bins.masked_fill(kept, -1)
    one = values.new_ones(len(values), 1)
    sums = bin_sums(bins, mass * weight, torch.cat([values, one], 1), count)
    second = bin_sums(bins, mass * weight.square() * distance.clamp_min(0), one, count)[..., 0]
    total = bin_sums(bins, mass, one, count)[..., 0]
    full = total > 0
    safe = torch.where(full, total, 1.0)
    mean_weight = torch.where(full, sums[..., -1] / safe, 1.0)
    mean = sums[..., :-1] / (safe * mean_weight)[..., None]
    mean = torch.where(full[..., None], mean, limit[:, None, :])
    square = second / (safe * mean_weight.square())
    log_total = torch.where(full, safe.log(), -torch.inf)
    return Atoms(
        centres + mean_weight.log(),
        log_total - torch.logsumexp(log_total, 1, keepdim=True),
        mean,
        square - (mean - limit[:, None, :]).square().sum(-1),
        limit,
    )
