"""Bernoulli subsampling of a population: every key that is not kept anyway is drawn with probability p."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.exact.atoms import Atoms, KeptSet
from attnlimit.exact.laplace import ENTRIES_AT_ONCE, HEAVY, SLOW_START, STEP, tau_grid


def bernoulli_moments(
    atoms: Atoms,
    kept: KeptSet | None,
    count: Float[Tensor, "m 1"],
    p: Float[Tensor, "m k"],
    kept_scale: Float[Tensor, "m k"],
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k q"]]:
    """With q_j = 1 − p + p e^{−tw_j}, r_j = p e^{−tw_j}/q_j and Φ = Π q_j over the `count` keys,

        E‖Γ_n − Γ‖² = ∫ t e^{−tW_S} Φ { ‖U_S + Σ r_j w_j u_j‖² + Σ (r_j − r_j²) w_j²‖u_j‖² } dt,

    and the bias is ∫ e^{−tW_S} Φ (U_S + Σ r_j w_j u_j) dt. A draw without any key has no output: it counts as
    zero error, with probability (1 − p)^count.
    """
    tau = tau_grid(atoms, int(count.max()), kept, SLOW_START)
    error = atoms.mean - atoms.limit[:, None, :]
    square = atoms.squares()
    number = atoms.log_mass.exp() * count
    rows = max(1, ENTRIES_AT_ONCE // (tau.shape[1] * atoms.scores.shape[1]))
    step = STEP * atoms.smooth
    squares, biases = [], []
    for start in range(0, len(tau), rows):
        block = slice(start, start + rows)
        y = (tau[block, :, None] + atoms.scores[block, None, :]).clamp_max(HEAVY).exp_()
        vectors, scalars = number[block, :, None] * error[block], (number[block] * square[block])[..., None]
        moments = []
        for k in range(p.shape[1]):
            chance = p[block, k, None, None]
            log_q = torch.where(chance < 1, torch.log1p(chance * torch.expm1(-y)), -y)
            r = chance / (chance + (1 - chance) * y.exp())
            log_phi = (log_q @ number[block, :, None])[..., 0]
            drift, noise = (r * y) @ vectors, (r * (1 - r) * y.square()) @ scalars
            if kept is not None:
                own = tau[block] + kept.log_weight[block, None] - kept_scale[block, k, None].log()
                own = own.clamp_max(HEAVY).exp()
                log_phi = log_phi - own
                drift = drift + own[..., None] * kept.mean_error[block, None, :]
            phi = log_phi.exp()
            moments.append(
                (
                    step * (phi * (drift.square().sum(-1) + noise[..., 0])).sum(1),
                    step * (phi[..., None] * drift).sum(1),
                )
            )
        squares.append(torch.stack([moment[0] for moment in moments], 1))
        biases.append(torch.stack([moment[1] for moment in moments], 1))
    return torch.cat(squares), torch.cat(biases)
