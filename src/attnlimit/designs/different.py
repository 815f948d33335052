"""n different keys, drawn at once: what a budget of n keys is.

With e_j = e^{−tw_j}, and sums over all sets J of n of the R keys,

    E‖Γ_n − Γ‖² = C(R, n)⁻¹ ∫ t e^{−tW_S} Σ_J Π_{j∈J} e_j ‖U_S + Σ_{j∈J} w_j u_j‖² dt.

The sums grow key by key, as elementary symmetric polynomials do, without any cancellation: with E_n = Σ_J Π e_j, V_n the
same with Σ_J w u and Q_n with ‖Σ_J w u‖², a key more makes

    E_n + e E_{n−1},   V_n + e (V_{n−1} + wu E_{n−1}),   Q_n + e (Q_{n−1} + 2 wu·V_{n−1} + ‖wu‖² E_{n−1})

of them. This costs R² steps at each t, and is done for up to `FEW` keys. For more, three schemes beside it are cheaper: n
independent keys (f), a coin of chance n/R for every key (g), and a Poisson number of independent keys with mean n (h), and

    E‖Γ_n − Γ‖² ≈ f(n) g(n) / h(n)

is right at n = 1 and n = R, where n ≪ R (g/h → 1), where the central limit theorem holds (g/h → 1 − n/R) and where one
key has all the weight (the chance to miss it, 1 − n/R).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.designs.coins import coin_moments
from attnlimit.designs.draw import Draw, Moments, Rest
from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.laplace import HEAVY, SLOW_START, STEP, Transforms, tau_grid, transforms

FEW = 64
"""Keys up to which all sets are summed over."""


@dataclass(frozen=True)
class Different(Draw):
    """A uniformly random set of n different keys."""

    name, words = "different", "different keys"

    def places(self, population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
        order = torch.randperm(population, generator=generator, device=generator.device)
        return [order[:size] for size in n]

    def exact(self, rest: Rest, n_max: int) -> Moments:
        """Zero where n ≥ R."""
        few = (rest.number <= FEW)[:, 0]
        small, large = rest.of(few), rest.of(~few)
        shared = transforms(large.atoms, large.kept, n_max, SLOW_START) if bool((~few).any()) else None

        def moments(n: Tensor, stands_for: Tensor) -> tuple[Tensor, Tensor]:
            n = n.expand(len(few), -1)
            square = torch.zeros(n.shape, dtype=torch.float64, device=n.device)
            bias = square[..., None].expand(-1, -1, rest.atoms.limit.shape[-1]).clone()
            if shared is not None:
                square[~few], bias[~few] = _product(large, shared, n[~few], stands_for[~few])
            if bool(few.any()):
                square[few], bias[few] = set_moments(small, n[few], stands_for[few])
            return square, bias

        return moments


def set_moments(
    rest: Rest, n: Float[Tensor, "m k"], stands_for: Float[Tensor, "m k"]
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k p"]]:
    """The formula above, with the bias C(R, n)⁻¹ ∫ e^{−tW_S} Σ_J Π e_j (U_S + Σ_J w_j u_j) dt; zero where n ≥ R.

    Keys of equal score may come as one atom of several: each is then an atom of its own here.
    """
    atoms, kept, number = rest
    tau = tau_grid(atoms, int(number.max()), kept, SLOW_START)
    many = (atoms.log_mass.exp() * number).round()
    error, square = atoms.mean - atoms.limit[:, None, :], atoms.squares()
    most = int(n.masked_fill(n >= number, 0).max())
    sums = torch.zeros(*tau.shape, most + 1, error.shape[-1] + 2, dtype=torch.float64)
    sums[..., 0, 0] = 1.0
    grow = _compiled_sets if has_numba() and tau.device.type == "cpu" else _plain_sets
    sums = grow(tau, atoms.scores, many, error, square, sums.to(tau.device))
    size = n.clamp_max(most).long()
    found = sums.gather(2, size[:, None, :, None].expand(-1, tau.shape[1], -1, sums.shape[-1]))
    log_sets = torch.lgamma(number + 1) - torch.lgamma(n + 1) - torch.lgamma((number - n).clamp_min(0) + 1)
    # the sums have e_j relative to that of the lightest key, which n keys together lack n times
    lightest = (tau + atoms.scores.masked_fill(many == 0, torch.inf).amin(1, keepdim=True)).clamp_max(HEAVY)
    log_phi = -log_sets[:, None] - n[:, None] * lightest.exp()[..., None]
    sets, pairs, drift = found[..., 0], found[..., 1], found[..., 2:]
    if kept is not None:
        own = tau[..., None] + kept.log_weight[:, None, None] - stands_for[:, None].log()
        own = own.clamp_max(HEAVY).exp()
        log_phi = log_phi - own
        error = kept.mean_error[:, None, None]
        pairs = pairs + 2 * own * (drift * error).sum(-1) + own.square() * sets * error.square().sum(-1)
        drift = drift + (own * sets)[..., None] * error
    phi = (STEP * atoms.smooth) * log_phi.exp().masked_fill((n >= number)[:, None], 0.0)
    return (phi * pairs).sum(1), (phi[..., None] * drift).sum(1)


def _compiled_sets(
    tau: Tensor, scores: Tensor, many: Tensor, error: Tensor, square: Tensor, sums: Tensor
) -> Tensor:
    """E_n, Q_n and V_n, (m, t, n, ·)."""
    inputs = (part.contiguous() for part in (tau, scores, many, error, square))
    run_compiled(_accumulate, len(tau), *inputs, sums)
    return sums


def _accumulate(
    start: int, stop: int, tau: Any, scores: Any, many: Any, error: Any, square: Any, out: Any
) -> None:
    most, p = out.shape[2] - 1, error.shape[2]
    for i in range(start, stop):
        present = np.flatnonzero(many[i])
        low = scores[i][present].min()
        for t in range(tau.shape[1]):
            lightest, seen = math.exp(min(tau[i, t] + low, 6.5)), 0
            for j in present:
                y = math.exp(min(tau[i, t] + scores[i, j], 6.5))
                e = math.exp(lightest - y)
                for _ in range(int(many[i, j])):
                    seen += 1
                    for k in range(min(most, seen), 0, -1):
                        sets, cross = e * out[i, t, k - 1, 0], 0.0
                        out[i, t, k, 0] += sets
                        for c in range(p):
                            value = y * error[i, j, c]
                            cross += value * out[i, t, k - 1, 2 + c]
                            out[i, t, k, 2 + c] += e * out[i, t, k - 1, 2 + c] + value * sets
                        own = y * y * square[i, j] * sets
                        out[i, t, k, 1] += e * (out[i, t, k - 1, 1] + 2.0 * cross) + own


def _plain_sets(
    tau: Tensor, scores: Tensor, many: Tensor, error: Tensor, square: Tensor, sums: Tensor
) -> Tensor:
    """The same in torch, a key at a time."""
    low = scores.masked_fill(many == 0, torch.inf).amin(1, keepdim=True)
    lightest = (tau + low).clamp_max(HEAVY).exp()
    for j in range(scores.shape[1]):
        y = (tau + scores[:, j : j + 1]).clamp_max(HEAVY).exp()
        e = torch.where(many[:, j : j + 1] > 0, (lightest - y).exp(), 0.0)[..., None]
        value = y[..., None] * error[:, None, j]
        for _ in range(int(many[:, j].max())):
            before = sums[:, :, :-1]
            sets = e * before[..., 0]
            drift = before[..., 2:]
            cross = (drift * value[:, :, None]).sum(-1)
            own = (y.square() * square[:, j : j + 1])[..., None] * sets
            pairs = e * (before[..., 1] + 2 * cross) + own
            vectors = e[..., None] * drift + value[:, :, None] * sets[..., None]
            more = torch.cat([sets[..., None], pairs[..., None], vectors], -1)
            sums = torch.cat([sums[:, :, :1], sums[:, :, 1:] + more], 2)
    return sums


def _product(
    rest: Rest, shared: Transforms, n: Float[Tensor, "m k"], stands_for: Float[Tensor, "m k"]
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k p"]]:
    """f g / h, and the bias of the coins."""
    once, bias = coin_moments(rest, n, stands_for)
    independent, _ = shared.moments(n, stands_for)
    ratio = once / poisson_squares(shared, n, stands_for).clamp_min(1e-300)
    found = torch.where(n > 1, (independent * ratio).clamp_min(0), independent)
    all_drawn = n >= rest.number
    return found.masked_fill(all_drawn, 0.0), bias.masked_fill(all_drawn[..., None], 0.0)


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
