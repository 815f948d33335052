"""The Laplace integral behind the exact finite-n error.

With n independent keys of weight w = e^z, u = v − Γ and φ(t) = E e^{−tw}, the identity 1/W² = ∫ t e^{−tW} dt gives

    E‖Γ_n − Γ‖² = ∫₀^∞ t { n E[w²‖u‖²e^{−tw}] φ^{n−1} + n(n−1) ‖E[w u e^{−tw}]‖² φ^{n−2} } dt,

and 1/W = ∫ e^{−tW} dt gives the bias. In τ = log t the integrand is analytic and dies double-exponentially, so the
trapezoid rule converges geometrically. All n share the inner expectations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.atoms import Atoms, KeptSet
from attnlimit.numerics.compiled import has_numba, run_compiled

STEP = 0.4
"""Step in τ for scores that are smooth on the scale 1: the rule is then good to 1e-8."""
FAST_START, SLOW_START = 12.0, 20.0
"""The integrand starts like t², or like t where the mean error does not vanish at t = 0: how much earlier to begin."""
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


def transforms(atoms: Atoms, kept: KeptSet | None, n_max: int, margin: float = FAST_START) -> Transforms:
    """The inner expectations of all queries, for every n from 1 to n_max."""
    tau = tau_grid(atoms, n_max, kept, margin)
    sums = _compiled_sums if has_numba() and tau.device.type == "cpu" else _plain_sums
    log_phi, first, second = sums(
        tau, atoms.scores, atoms.log_mass.exp(), atoms.mean, atoms.limit, atoms.squares()
    )
    return Transforms(tau, STEP * atoms.smooth, log_phi, first, second, kept)


def _compiled_sums(
    tau: Tensor, scores: Tensor, mass: Tensor, mean: Tensor, limit: Tensor, square: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    sums = torch.zeros(*tau.shape, mean.shape[-1] + 3, dtype=torch.float64)
    inputs = (part.contiguous() for part in (tau, scores, mass, mean, square))
    run_compiled(_accumulate, len(tau), *inputs, sums)
    return _log_phi(sums[..., 0]), sums[..., 3:] - sums[..., 1:2] * limit[:, None, :], sums[..., 2]


def _accumulate(
    start: int, stop: int, tau: Any, scores: Any, mass: Any, mean: Any, square: Any, out: Any
) -> None:
    step, p = min(1, mean.shape[0] - 1), mean.shape[2]  # step 0: all queries share the values
    for i in range(start, stop):
        present = np.flatnonzero(mass[i])
        shift = 0.5 * (scores[i].min() + scores[i].max())
        weight = np.exp(scores[i] - shift)
        product = scores[i].max() - shift < 300.0  # then y is a product of two finite numbers
        for t in range(tau.shape[1]):
            at = min(tau[i, t] + shift, 300.0)
            factor = math.exp(at)
            for j in present:
                y = factor * weight[j] if product else math.exp(min(tau[i, t] + scores[i, j], 4.0))
                if y > 40.0:  # e^{−y} < 5e-18
                    out[i, t, 0] -= mass[i, j]
                    continue
                if y < 1e-3:  # the series is exact to rounding, and cheaper
                    shrink = y * (y * (0.5 - y * (1.0 / 6.0 - y / 24.0)) - 1.0)
                else:
                    shrink = math.exp(-y) - 1.0
                w = mass[i, j] * y * (shrink + 1.0)
                out[i, t, 0] += mass[i, j] * shrink
                out[i, t, 1] += w
                out[i, t, 2] += w * y * square[i, j]
                for c in range(p):
                    out[i, t, 3 + c] += w * mean[i * step, j, c]


def _plain_sums(
    tau: Tensor, scores: Tensor, mass: Tensor, mean: Tensor, limit: Tensor, square: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch, some queries at a time."""
    rows = max(1, ENTRIES_AT_ONCE // (tau.shape[1] * scores.shape[1]))
    parts = []
    for i in range(0, len(tau), rows):
        block = slice(i, i + rows)
        y = (tau[block, :, None] + scores[block, None, :]).clamp_max(HEAVY).exp_()
        shrink = torch.expm1(-y)
        phi = (shrink @ mass[block, :, None])[..., 0]
        w = (shrink + 1.0).mul_(y).mul_(mass[block, None, :])
        first = (
            w @ (mean if len(mean) == 1 else mean[block]) - w.sum(-1, keepdim=True) * limit[block, None, :]
        )
        second = (w.mul_(y) @ square[block, :, None])[..., 0]
        parts.append((_log_phi(phi), first, second))
    log_phi, first, second = (torch.cat(each) for each in zip(*parts, strict=True))
    return log_phi, first, second


def _log_phi(shrink: Tensor) -> Tensor:
    return torch.log1p(shrink.clamp_min(-1.0)).clamp_min(-1e4)


def tau_grid(atoms: Atoms, n_max: int, kept: KeptSet | None, margin: float) -> Float[Tensor, "m t"]:
    """τ from where n_max keys together, or the heaviest one that they are likely to have, still weigh nothing,
    t n E w ≪ 1 and t w ≪ 1, to where the lightest alone is too heavy, t w_min ≫ 1."""
    present = atoms.log_mass > -torch.inf
    likely = atoms.log_mass > -math.log(n_max) - 22.0  # n_max times its mass above 3e-10
    heaviest = atoms.scores.masked_fill(~likely, -torch.inf).amax(1)
    total = torch.logsumexp(atoms.scores + atoms.log_mass, 1) + math.log(n_max)
    lightest = atoms.scores.masked_fill(~present, torch.inf).amin(1)
    if kept is not None:
        total, margin = torch.logaddexp(total, kept.log_weight), SLOW_START
    low, high = -torch.maximum(total + margin, heaviest + 10.0), -lightest + 4.0
    step = STEP * atoms.smooth
    count = int(((high - low).max() / step).ceil()) + 1
    return low[:, None] + step * torch.arange(count, dtype=low.dtype, device=low.device)
