"""The Laplace integral behind the exact finite-n error.

With n independent keys of weight w = e^z, u = v − Γ and φ(t) = E e^{−tw}, the identity 1/W² = ∫ t e^{−tW} dt gives

    E‖Γ_n − Γ‖² = ∫₀^∞ t { n E[w²‖u‖²e^{−tw}] φ^{n−1} + n(n−1) ‖E[w u e^{−tw}]‖² φ^{n−2} } dt,

and 1/W = ∫ e^{−tW} dt gives the bias. In τ = log t the integrand is analytic and dies double-exponentially, so the
trapezoid rule converges geometrically. All n share the inner expectations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.numerics.atoms import FINE, Atoms, KeptSet
from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.condensed import Condensed, as_they_are

STEP, FAST_START = FINE.step, FINE.start
WIDEST = 100_000
HEAVY = 6.5
"""log of the largest t w that is told apart: e^{−e^6.5} is 1e-289."""
ENTRIES_AT_ONCE = 2**22
"""Never more than this many (τ, atom) pairs in memory."""
WORTH_COMPILING = 2**24
"""From so many pairs on, numba repays the second that it takes to load."""


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


def transforms(
    atoms: Atoms | Condensed, kept: KeptSet | None, n_max: int, *, late: bool = False
) -> Transforms:
    """The inner expectations of all queries, for every n from 1 to n_max; some queries at a time."""
    tau = tau_grid(atoms, n_max, kept, late=late)
    rows = max(1, ENTRIES_AT_ONCE // (tau.shape[1] * atoms.scores.shape[1]))
    blocks = (slice(i, i + rows) for i in range(0, len(tau), rows))
    large = tau.numel() * atoms.scores.shape[1] >= WORTH_COMPILING
    fill = _compiled if large and tau.device.type == "cpu" and has_numba() else _plain
    parts = [_sums(tau[block], atoms.of(block), fill) for block in blocks]
    log_phi, first, second = (torch.cat(each) for each in zip(*parts, strict=True))
    return Transforms(tau, atoms.step, log_phi, first, second, kept)


def _sums(
    tau: Float[Tensor, "m t"], atoms: Atoms | Condensed, fill: Callable[..., tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """log E e^{−tw}, t E[w u e^{−tw}] and t² E[w²‖u‖² e^{−tw}]: products of matrices (τ × keys) and (keys × values)."""
    one = torch.ones_like(tau[:, :1])
    # the masses of atoms need not sum to 1: what is missing weighs nothing
    keys, number = (
        (as_they_are(atoms, one), one) if isinstance(atoms, Atoms) else (atoms, atoms.number.sum(1)[:, None])
    )
    shrink, pull, push = fill(tau, keys.scores, keys.vector.dtype)
    phi = torch.log1p(((shrink @ keys.number[..., None])[..., 0] / number).clamp_min(-1.0)).clamp_min(-1e4)
    first = (pull @ keys.vector).double() / number[..., None]
    return phi, first, (push @ keys.square.to(push)[..., None])[..., 0].double() / number


def _plain(tau: Tensor, scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """e^{−y} − 1, y e^{−y} and y² e^{−y} at y = tw, (m, t, j)."""
    y = (tau[..., None] + scores[:, None, :]).clamp_max(HEAVY).exp_()
    shrink = torch.expm1(-y)
    pull = (shrink + 1.0).mul_(y)
    return shrink, pull.to(dtype), pull.mul(y).to(dtype)


def _compiled(tau: Tensor, scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The same, without an exponential where y is small or large."""
    shape = (*tau.shape, scores.shape[1])
    shrink = torch.empty(shape, dtype=torch.float64)
    pull, push = (torch.empty(shape, dtype=dtype) for _ in range(2))
    run_compiled(_fill, len(tau), tau.contiguous(), scores.contiguous(), shrink, pull, push)
    return shrink, pull, push


def _fill(start: int, stop: int, tau: Any, scores: Any, shrink: Any, pull: Any, push: Any) -> None:
    for i in range(start, stop):
        shift = 0.5 * (scores[i].min() + scores[i].max())
        weight = np.exp(scores[i] - shift)
        product = scores[i].max() - shift < 300.0  # then y is a product of two finite numbers
        for t in range(tau.shape[1]):
            factor = math.exp(min(tau[i, t] + shift, 300.0))
            for j in range(scores.shape[1]):
                y = factor * weight[j] if product else math.exp(min(tau[i, t] + scores[i, j], 4.0))
                if y > 40.0:  # e^{−y} < 5e-18
                    shrink[i, t, j], pull[i, t, j], push[i, t, j] = -1.0, 0.0, 0.0
                    continue
                # the series is exact to rounding, and cheaper
                series = y * (y * (0.5 - y * (1.0 / 6.0 - y / 24.0)) - 1.0)
                less = series if y < 1e-3 else math.exp(-y) - 1.0
                shrink[i, t, j] = less
                pull[i, t, j] = y * (less + 1.0)
                push[i, t, j] = y * y * (less + 1.0)


def tau_grid(
    atoms: Atoms | Condensed, n_max: int, kept: KeptSet | None, *, late: bool = False
) -> Float[Tensor, "m t"]:
    """τ from where n_max keys together, or the heaviest one that they are likely to have, still weigh nothing,
    t n E w ≪ 1 and t w ≪ 1, to where the lightest alone is too heavy, t w_min ≫ 1. `late`: what is integrated starts like t."""
    precise, (total, heaviest, lightest) = atoms.precision, atoms.reach(n_max)
    if kept is not None:
        total, late = torch.logaddexp(total, kept.log_weight), True
    margin = precise.late if late else precise.start
    low, high = -torch.maximum(total + margin, heaviest + precise.alone), -lightest + precise.end
    width = float((high - low).max())
    if not width <= WIDEST:
        raise InputError(
            f"The scores of a query spread over {width:.3g}, and the grid is made up to {WIDEST:,}: one key takes all the "
            "weight. Use a smaller A or κ, or hardmax_error for the limit."
        )
    count = math.ceil(width / atoms.step) + 1
    return low[:, None] + atoms.step * torch.arange(count, dtype=low.dtype, device=low.device)
