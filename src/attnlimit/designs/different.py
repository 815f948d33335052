"""n different keys, drawn at once: what a budget of n keys is.

Three schemes beside it have a closed form: n independent keys (f), a coin of chance p = n/R for every key (g), and a
Poisson number of independent keys with mean n (h), and

    E‖Γ_n − Γ‖² ≈ f(n) g(n) / h(n).

It is exact at n = 1 (one key is an independent one), at n = R (zero), where n ≪ R (g/h → 1), where the central limit
theorem holds (g/h → 1 − n/R) and where one key has all the weight (the chance to miss it, 1 − n/R).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.designs.coins import coin_moments
from attnlimit.designs.draw import Draw, Moments, Rest
from attnlimit.numerics.laplace import HEAVY, SLOW_START, Transforms, transforms


@dataclass(frozen=True)
class Different(Draw):
    """A uniformly random set of n different keys."""

    name, words = "different", "different keys"

    def places(self, population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
        order = torch.randperm(population, generator=generator, device=generator.device)
        return [order[:size] for size in n]

    def exact(self, rest: Rest, n_max: int) -> Moments:
        """Zero where n ≥ R."""
        shared = transforms(rest.atoms, rest.kept, n_max, SLOW_START)

        def moments(n: Tensor, stands_for: Tensor) -> tuple[Tensor, Tensor]:
            once, bias = coin_moments(rest, n, stands_for)
            independent, _ = shared.moments(n, stands_for)
            ratio = once / poisson_squares(shared, n, stands_for).clamp_min(1e-300)
            found = torch.where(n > 1, (independent * ratio).clamp_min(0), independent)
            return torch.where(n < rest.number, found, 0.0), torch.full_like(bias, torch.nan)

        return moments


def poisson_squares(
    shared: Transforms, n: Float[Tensor, "#m k"], stands_for: Float[Tensor, "m k"]
) -> Float[Tensor, "m k"]:
    """E‖Γ_N − Γ‖² for a Poisson number N of independent keys with mean n: φⁿ is e^{−n(1 − φ)} here,

        ∫ t e^{−tW_S} e^{−n(1 − φ)} { ‖U_S + n E[w u e^{−tw}]‖² + n E[w²‖u‖² e^{−tw}] } dt.

    No key at all counts as zero error, as with coins.
    """
    n = n[:, None, :]
    log_phi = n * torch.expm1(shared.log_phi)[..., None]
    g = shared.first
    square = n.square() * g.square().sum(-1)[..., None] + n * shared.second[..., None]
    if shared.kept is not None:
        own = shared.tau[..., None] + shared.kept.log_weight[:, None, None] - stands_for[:, None, :].log()
        own = own.clamp_max(HEAVY).exp()  # t W_S, per n
        error = shared.kept.mean_error[:, None, :]
        square = square + own.square() * error.square().sum(-1, keepdim=True)
        square = square + 2 * n * own * (error * g).sum(-1)[..., None]
        log_phi = log_phi - own
    return shared.step * (log_phi.exp() * square).sum(1)
