"""A coin for every key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.designs.draw import Draw, Moments, Rest, uniform
from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.laplace import ENTRIES_AT_ONCE, HEAVY, SLOW_START, STEP, tau_grid


@dataclass(frozen=True)
class Coins(Draw):
    """Each key independently with probability n/R, R their number, so about n of them (Bernoulli subsampling)."""

    name, words = "coins", "keys by coins"

    def places(self, population: int, n: Sequence[int], generator: torch.Generator) -> list[Tensor]:
        """Attention needs a key: when none is drawn, the one nearest to it is."""
        ordered, order = uniform(population, generator).sort()
        drawn = [int(torch.searchsorted(ordered, size / population)) for size in n]
        return [order[: max(1, count)] for count in drawn]

    def exact(self, rest: Rest, n_max: int) -> Moments:
        return partial(coin_moments, rest)


def coin_moments(
    rest: Rest, n: Float[Tensor, "#m k"], stands_for: Float[Tensor, "m k"]
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k q"]]:
    """With p = n/R, q_j = 1 − p + p e^{−tw_j}, r_j = p e^{−tw_j}/q_j and Φ = Π q_j over the R keys,

        E‖Γ_n − Γ‖² = ∫ t e^{−tW_S} Φ { ‖U_S + Σ r_j w_j u_j‖² + Σ (r_j − r_j²) w_j²‖u_j‖² } dt,

    and the bias is ∫ e^{−tW_S} Φ (U_S + Σ r_j w_j u_j) dt. A draw without any key has no output: it counts as
    zero error, with probability (1 − p)^R.
    """
    atoms, kept, number = rest
    p = (n / number).clamp_max(1.0).expand(len(number), -1)
    tau = tau_grid(atoms, int(number.max()), kept, SLOW_START)
    error, square = atoms.mean - atoms.limit[:, None, :], atoms.squares()
    many = atoms.log_mass.exp() * number
    sums = _compiled_sums if has_numba() and tau.device.type == "cpu" else _plain_sums
    log_phi, noise, drift = sums(tau, atoms.scores, many, error, square, p)
    if kept is not None:
        own = tau[:, None, :] + kept.log_weight[:, None, None] - stands_for[..., None].log()
        own = own.clamp_max(HEAVY).exp()
        log_phi = log_phi - own
        drift = drift + own[..., None] * kept.mean_error[:, None, None, :]
    phi, step = log_phi.exp(), STEP * atoms.smooth
    square = step * (phi * (drift.square().sum(-1) + noise)).sum(2)
    return square, step * (phi[..., None] * drift).sum(2)


def _compiled_sums(
    tau: Tensor, scores: Tensor, number: Tensor, error: Tensor, square: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log Φ, Σ (r − r²)(tw)²‖u‖² and Σ r tw u, each (m, k, t, ·)."""
    sums = torch.zeros(*tau.shape, p.shape[1], error.shape[-1] + 2, dtype=torch.float64)
    inputs = (part.contiguous() for part in (tau, scores, number, error, square, p))
    run_compiled(_accumulate, len(tau), *inputs, sums)
    sums = sums.transpose(1, 2)
    return sums[..., 0], sums[..., 1], sums[..., 2:]


def _accumulate(
    start: int, stop: int, tau: Any, scores: Any, number: Any, error: Any, square: Any, p: Any, out: Any
) -> None:
    for i in range(start, stop):
        present = np.flatnonzero(number[i])
        for t in range(tau.shape[1]):
            for j in present:
                y = math.exp(min(tau[i, t] + scores[i, j], 6.5))
                seen, many = math.exp(-y), number[i, j]
                for k in range(p.shape[1]):
                    chance = p[i, k]
                    if chance == 1.0:
                        r = 1.0
                        out[i, t, k, 0] -= many * y
                    else:
                        q = 1.0 - chance + chance * seen
                        r = chance * seen / q
                        out[i, t, k, 0] += many * math.log(q)
                    if r < 1e-18:
                        continue
                    out[i, t, k, 1] += many * r * (1.0 - r) * y * y * square[i, j]
                    w = many * r * y
                    for c in range(error.shape[2]):
                        out[i, t, k, 2 + c] += w * error[i, j, c]


def _plain_sums(
    tau: Tensor, scores: Tensor, number: Tensor, error: Tensor, square: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch, some queries and one p at a time."""
    rows = max(1, ENTRIES_AT_ONCE // (tau.shape[1] * scores.shape[1]))
    parts = []
    for start in range(0, len(tau), rows):
        block = slice(start, start + rows)
        y = (tau[block, :, None] + scores[block, None, :]).clamp_max(HEAVY).exp_()
        vectors, scalars = number[block, :, None] * error[block], (number[block] * square[block])[..., None]
        each = []
        for chance in p[block].unbind(1):
            chance = chance[:, None, None]
            log_q = torch.where(chance < 1, torch.log1p(chance * torch.expm1(-y)), -y)
            r = chance / (chance + (1 - chance) * y.exp())
            noise = (r * (1 - r) * y.square()) @ scalars
            each.append(((log_q @ number[block, :, None])[..., 0], noise[..., 0], (r * y) @ vectors))
        parts.append([torch.stack(part, 1) for part in zip(*each, strict=True)])
    log_phi, noise, drift = (torch.cat(part) for part in zip(*parts, strict=True))
    return log_phi, noise, drift
