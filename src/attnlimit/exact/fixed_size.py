"""n different keys of a population, drawn at once: what a budget of n keys is.

There is no closed form, but three schemes beside it have one: n independent keys (f), each key with probability
p = n/R (g), and a Poisson number of independent keys with mean n (h). The last two have the same random size, so that
g/h is the effect of not drawing a key twice and nothing else:

    E‖Γ_n − Γ‖² ≈ f(n) g(n) / h(n).

It is exact at n = 1 (one key is an independent one), at n = R (zero), where n ≪ R (g/h → 1), where the central limit theorem holds (g/h → 1 − n/R) and where
one key has all the weight (the chance to miss it, 1 − n/R).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from attnlimit.designs.coins import bernoulli_moments
from attnlimit.errors import InputError
from attnlimit.exact.populations import score_atoms
from attnlimit.numerics.laplace import HEAVY, SLOW_START, Transforms, transforms


def fixed_size_squares(
    scores: Float[Tensor, "m keys"],
    values: Float[Tensor, "keys p"],
    n: Shaped[Tensor, " k"],
    *,
    kept: Bool[Tensor, "m keys"] | None = None,
    hidden: Bool[Tensor, "m keys"] | None = None,
    sink: Float[Tensor, " m"] | None = None,
    binned: bool = False,
) -> Float[Tensor, "m k"]:
    """E‖Γ_n − Γ‖² of n different keys of the rest R (seen, not kept), which stand for all of it (weight R/n each);
    zero where n ≥ R. Arguments as in `prepare_scores`."""
    keys = scores.shape[1]
    none = torch.zeros(1, 1, dtype=torch.bool, device=scores.device)
    skipped = (none if kept is None else kept) | (none if hidden is None else hidden)
    count = (~skipped).expand(scores.shape).sum(1, keepdim=True).double()
    if not bool((count > 0).all()):
        raise InputError("Some query keeps every key that it sees: nothing is left to sample.")
    mass = scores.new_full((keys,), 1 / keys)
    atoms, own = score_atoms(scores, values, mass, kept=kept, hidden=hidden, sink=sink, binned=binned)
    n = n.double()[None]
    scale, chance = count / n, (n / count).clamp_max(1.0)
    once, _ = bernoulli_moments(atoms, own, count, chance, scale)
    shared = transforms(atoms, own, int(n.max()), SLOW_START)
    independent, _ = shared.moments(n, scale)
    ratio = once / poisson_squares(shared, n, scale).clamp_min(1e-300)
    found = torch.where(n > 1, (independent * ratio).clamp_min(0), independent)
    return torch.where(chance < 1, found, 0.0)


def poisson_squares(
    shared: Transforms, n: Float[Tensor, "#m k"], kept_scale: Float[Tensor, "m k"]
) -> Float[Tensor, "m k"]:
    """E‖Γ_N − Γ‖² for a Poisson number N of independent keys with mean n: φⁿ is e^{−n(1 − φ)} here,

        ∫ t e^{−tW_S} e^{−n(1 − φ)} { ‖U_S + n E[w u e^{−tw}]‖² + n E[w²‖u‖² e^{−tw}] } dt.

    No key at all counts as zero error, as in `bernoulli_moments`.
    """
    n = n[:, None, :]
    log_phi = n * torch.expm1(shared.log_phi)[..., None]
    g = shared.first
    square = n.square() * g.square().sum(-1)[..., None] + n * shared.second[..., None]
    if shared.kept is not None:
        own = shared.tau[..., None] + shared.kept.log_weight[:, None, None] - kept_scale[:, None, :].log()
        own = own.clamp_max(HEAVY).exp()  # t W_S, per n
        error = shared.kept.mean_error[:, None, :]
        square = square + own.square() * error.square().sum(-1, keepdim=True)
        square = square + 2 * n * own * (error * g).sum(-1)[..., None]
        log_phi = log_phi - own
    return shared.step * (log_phi.exp() * square).sum(1)
