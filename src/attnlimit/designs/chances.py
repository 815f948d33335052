"""A coin of its own for every key (Horvitz–Thompson)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlimit.designs.draw import Draw, Moments, Rest, uniform
from attnlimit.errors import InputError
from attnlimit.inputs import Count, Rising
from attnlimit.numerics.atoms import HEAVY
from attnlimit.numerics.laplace import tau_grid


@dataclass(frozen=True)
class Chances(Draw):
    """Key j with probability π_j = min(1, c·sizes_j), Σ π_j = n, weighing 1/π_j times, given that some key is drawn.

    `sizes` are one number a key (None: all alike, as `Coins`); keys of size zero are never read. Not nested.
    """

    sizes: tuple[float, ...] | None = None
    name, words, nested = "chances", "keys by chances of their own", False

    def __post_init__(self) -> None:
        if self.sizes is None:
            return
        sizes = tuple(float(size) for size in self.sizes)
        if not sizes or min(sizes) < 0 or not 0 < sum(sizes) < math.inf:
            raise InputError(
                f"sizes must be finite numbers of at least 0, some above, one a key; got {sizes[:4]}… of {len(sizes)}."
            )
        object.__setattr__(self, "sizes", sizes)

    def places(self, population: Count, n: Rising, generator: torch.Generator) -> list[Tensor]:
        sizes = self._sizes(population).to(generator.device)
        chances = [chances_of(sizes, float(size)) for size in n]
        return [_some(chance, generator) for chance in chances]

    def weigh(self, population: int, n: int, places: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
        chance = chances_of(self._sizes(population), float(n)).to(places.device)
        return n / population / chance[places]

    def exact(self, rest: Rest, n_max: int) -> Moments:
        sizes = self._sizes(rest.atoms.scores.shape[1]).to(rest.number.device)
        return lambda n, stands_for: chance_moments(rest, sizes.expand_as(rest.atoms.scores), n, stands_for)

    def _sizes(self, population: int) -> Float[Tensor, " j"]:
        if self.sizes is None:
            return torch.ones(population, dtype=torch.float64)
        if len(self.sizes) != population:
            raise InputError(
                f"sizes are of {len(self.sizes)} keys, but {population} are drawn from: give one for each key (Monte Carlo "
                "beside kept keys takes no sizes)."
            )
        return torch.tensor(self.sizes, dtype=torch.float64)


def chances_of(sizes: Float[Tensor, "*m j"], n: float | Float[Tensor, "*m 1"]) -> Float[Tensor, "*m j"]:
    """π_j = min(1, c·sizes_j) with Σ π_j = n; all 1 where n keys or fewer have a size."""
    n = torch.as_tensor(n, dtype=sizes.dtype, device=sizes.device)
    ordered = sizes.sort(-1, descending=True).values
    left = ordered.flip(-1).cumsum(-1).flip(-1)  # what all but the k largest sizes sum up to
    sure = torch.arange(sizes.shape[-1], dtype=sizes.dtype, device=sizes.device)
    many = (n - sure).clamp_min(0)
    scale = many / left.clamp_min(1e-300)
    # with the k largest kept, the next has a chance of 1 or less, rounding or not
    fits = many * ordered <= left
    first = fits.to(torch.int8).argmax(-1, keepdim=True)
    some = n < (sizes > 0).sum(-1, keepdim=True)
    chance = torch.where(some, (scale.gather(-1, first) * sizes).clamp_max(1.0), 1.0)
    return torch.where(sizes > 0, chance, 0.0)


def chance_moments(
    rest: Rest,
    sizes: Float[Tensor, "m j"],
    n: Float[Tensor, "#m k"],
    stands_for: Float[Tensor, "m k"],
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k p"]]:
    """With w_j/π_j for w_j, q_j = 1 − π_j + π_j e^{−tw_j}, r_j = π_j e^{−tw_j}/q_j and Φ = Π q_j over the R keys,

        ∫ t e^{−tW_S} Φ { ‖U_S + Σ r_j w_j u_j‖² + Σ (r_j − r_j²) w_j²‖u_j‖² } dt = P₀‖U_S/W_S‖² + (1 − P₀) E‖Γ_n − Γ‖²,

    P₀ = Π(1 − π_j) the chance that no key is drawn, which does not count; the bias alike.
    """
    present = rest.key_by_key("Chances").log_mass > -torch.inf
    each = [
        _at(rest, chances_of(sizes * present, size[:, None]), size[:, None], many[:, None])
        for size, many in zip(n.expand_as(stands_for).unbind(1), stands_for.unbind(1), strict=True)
    ]
    square, bias = (torch.stack(part, 1) for part in zip(*each, strict=True))
    return square, bias


def _at(rest: Rest, chance: Tensor, n: Tensor, stands_for: Tensor) -> tuple[Tensor, Tensor]:
    """At one n, for each query."""
    atoms, kept, number = rest.key_by_key("Chances"), rest.kept, rest.number
    drawn = chance > 0
    log_factor = (n.minimum(number) / number).log() - chance.where(drawn, 1.0).log()
    error = atoms.errors()
    square = error.square().sum(-1)
    atoms = atoms._replace(
        scores=(atoms.scores + log_factor).where(drawn, 0.0),
        log_mass=atoms.log_mass.masked_fill(~drawn, -torch.inf),
    )
    tau = tau_grid(atoms, int(number.max()), kept, late=True)
    y = (tau[..., None] + atoms.scores[:, None]).clamp_max(HEAVY).exp()
    pi = chance[:, None]
    log_phi = torch.where(pi < 1, torch.log1p(pi * torch.expm1(-y)), -y).where(drawn[:, None], 0.0).sum(-1)
    r = pi / (pi + (1 - pi) * y.exp())
    noise = torch.einsum("mtj,mj->mt", r * (1 - r) * y.square(), square)
    drift = (r * y) @ error
    empty = torch.log1p(-chance).sum(1).exp()
    alone = torch.zeros_like(atoms.limit)
    if kept is not None:
        own = (tau + kept.log_weight[:, None] - stands_for.log()).clamp_max(HEAVY).exp()
        log_phi, alone = log_phi - own, kept.mean_error
        drift = drift + own[..., None] * alone[:, None]
    phi, step = log_phi.exp(), atoms.step
    square = step * (phi * (drift.square().sum(-1) + noise)).sum(1) - empty * alone.square().sum(-1)
    bias = step * (phi[..., None] * drift).sum(1) - empty[:, None] * alone
    return square / (1 - empty), bias / (1 - empty)[:, None]


def _some(chance: Tensor, generator: torch.Generator) -> Tensor:
    """Keys by their chances, again until there is one."""
    while True:
        found = (uniform(len(chance), generator) < chance).nonzero()[:, 0]
        if len(found):
            return found
