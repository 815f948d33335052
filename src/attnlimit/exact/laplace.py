"""The Laplace integral behind the exact finite-n error.

With n independent keys of weight w = e^z, u = v − Γ and φ(t) = E e^{−tw}, the identity 1/W² = ∫ t e^{−tW} dt gives

    E‖Γ_n − Γ‖² = ∫₀^∞ t { n E[w²‖u‖²e^{−tw}] φ^{n−1} + n(n−1) ‖E[w u e^{−tw}]‖² φ^{n−2} } dt,

and 1/W = ∫ e^{−tW} dt gives the bias. In τ = log t the integrand is analytic and dies double-exponentially, so the
trapezoid rule converges geometrically. All n share the inner expectations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.exact.atoms import Atoms, KeptSet

STEP = 0.4
"""Step in τ for scores that are smooth on the scale 1: the rule is then good to 1e-8."""
HEAVY = 6.5
"""log of the largest t w that is told apart: e^{−e^6.5} is 1e-289."""
ENTRIES_AT_ONCE = 2**22
"""Never more than this many (τ, atom) pairs in memory."""


@dataclass(frozen=True, eq=False)
class Transforms:
    """The inner expectations on the τ-grid, each already multiplied by its power of t."""

    tau: Float[Tensor, "m t"]
    step: float
    log_phi: Float[Tensor, "m t"]
    """log E e^{−tw}."""
    first: Float[Tensor, "m t p"]
    """t E[w u e^{−tw}]."""
    second: Float[Tensor, "m t"]
    """t² E[w²‖u‖² e^{−tw}]."""
    kept: KeptSet | None = None

    def moments(
        self, n: Float[Tensor, "#m k"], kept_scale: Float[Tensor, "#m k"] | None = None
    ) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k p"]]:
        """E‖Γ_n − Γ‖² and E Γ_n − Γ for each n. `kept_scale` divides the kept weights (importance weighting)."""
        log_phi, g = self.log_phi[..., None], self.first
        n = n[:, None, :]
        plain = g.square().sum(-1)[..., None]
        one = torch.exp((n - 1) * log_phi)
        two = torch.exp((n - 2).clamp_min(0) * log_phi)
        square = n * (n - 1) * two * plain + n * one * self.second[..., None]
        slope = n * one
        if self.kept is None:
            return self.step * square.sum(1), self.step * torch.einsum("mtk,mtp->mkp", slope, g)
        scale = torch.ones_like(n) if kept_scale is None else kept_scale[:, None, :]
        log_weight = self.tau[..., None] + self.kept.log_weight[:, None, None] - scale.log()
        y = log_weight.clamp_max(HEAVY).exp()  # t W_S, per n
        damp = torch.exp(-y)
        error = self.kept.mean_error[:, None, :]
        cross = (error * g).sum(-1)[..., None]
        full = torch.exp(n * log_phi)
        square = square + full * y.square() * error.square().sum(-1, keepdim=True) + 2 * n * one * y * cross
        bias = torch.einsum("mtk,mtp->mkp", damp * slope, g) + (damp * full * y).sum(1)[..., None] * error
        return self.step * (damp * square).sum(1), self.step * bias


def transforms(atoms: Atoms, kept: KeptSet | None, n_max: int) -> Transforms:
    """The inner expectations of all queries, for every n from 1 to n_max."""
    tau = tau_grid(atoms, n_max, kept)
    error = atoms.mean - atoms.limit[:, None, :]
    square = error.square().sum(-1) + atoms.spread
    m, count, j = *tau.shape, atoms.scores.shape[1]
    rows = max(1, ENTRIES_AT_ONCE // (count * j))
    blocks = [
        _block(
            tau[i : i + rows],
            atoms.scores[i : i + rows],
            atoms.log_mass[i : i + rows],
            error[i : i + rows],
            square[i : i + rows],
        )
        for i in range(0, m, rows)
    ]
    log_phi, first, second = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return Transforms(tau, STEP * atoms.smooth, log_phi, first, second, kept)


def _block(
    tau: Tensor, scores: Tensor, log_mass: Tensor, error: Tensor, square: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    y = (tau[:, :, None] + scores[:, None, :]).clamp_max(HEAVY).exp_()  # t w
    mass = log_mass.exp()
    shrink = torch.expm1(-y)
    log_phi = torch.log1p((shrink @ mass[..., None])[..., 0].clamp_min(-1.0)).clamp_min(-1e4)
    y_exp = (shrink + 1.0).mul_(y)
    first = y_exp @ (mass[..., None] * error)
    second = (y_exp.mul_(y) @ (mass * square)[..., None])[..., 0]
    return log_phi, first, second


def tau_grid(atoms: Atoms, n_max: int, kept: KeptSet | None, margin: float = 12.0) -> Float[Tensor, "m t"]:
    """τ from where n_max keys together, or the heaviest one that they are likely to have, still weigh nothing,
    t n E w ≪ 1 and t w ≪ 1, to where the lightest alone is too heavy, t w_min ≫ 1. The integrand starts like t²,
    but like t where the mean error does not vanish at t = 0."""
    present = atoms.log_mass > -torch.inf
    likely = atoms.log_mass > -math.log(n_max) - 22.0  # n_max times its mass above 3e-10
    heaviest = atoms.scores.masked_fill(~likely, -torch.inf).amax(1)
    total = torch.logsumexp(atoms.scores + atoms.log_mass, 1) + math.log(n_max)
    lightest = atoms.scores.masked_fill(~present, torch.inf).amin(1)
    if kept is not None:
        total, margin = torch.logaddexp(total, kept.log_weight), 20.0
    low, high = -torch.maximum(total + margin, heaviest + 10.0), -lightest + 4.0
    step = STEP * atoms.smooth
    count = int(((high - low).max() / step).ceil()) + 1
    return low[:, None] + step * torch.arange(count, dtype=low.dtype, device=low.device)
