"""The probability that a random sum is at most zero, from its characteristic function (Gil-Pelaez).

    P(Y ≤ 0) = ½ − (1/π) ∫₀^∞ Im χ(λ) dλ/λ,   χ(λ) = E e^{iλY}   (half of an atom at zero counts)

In τ = log λ, so that weights of all sizes are alike, by Gauss's rule on stretches that are halved until a rule on half of the nodes
agrees. The integral ends where χ has vanished for two e-folds. Where it does not (few keys, or a law with edges), it ends after
`MOST` nodes by a smooth step: P is then that of Y and a little noise whose moments all vanish, and what steps at 1/7 to 3/5
of the length would change is the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Complex, Float
from torch import Tensor

Transform: TypeAlias = Callable[[Float[Tensor, " k"]], Complex[Tensor, " k"]]
"""λ ↦ E e^{iλY}."""

NODES = 15
AGREE = 1e-8
"""Between the rules on a stretch, at which it is not halved any more."""
GONE = 1e-13
"""Of |χ|."""
MOST = 2000
"""Nodes after which the integral ends."""
SHORTER = (0.0, 0.5, 1.0, 1.5, 2.0)
"""By so much in τ the step that ends an integral comes earlier; how far apart the results are is the error."""
NEAR, WIDE, SHORT = 0.3, 4.0, 0.5
"""|χ − 1| up to which stretches are WIDE in τ; they are SHORT beyond."""


class Below(NamedTuple):
    """P(Y ≤ 0), and about how far off it may be."""

    chance: float
    error: float


class _Nodes(NamedTuple):
    tau: Float[Tensor, " k"]
    weight: Float[Tensor, " k"]
    chi: Complex[Tensor, " k"]
    error: float


def chance_below(transform: Transform, start: float) -> Below:
    """From λ = `start` on, below which Im χ adds nothing."""
    parts: list[_Nodes] = []
    low, gone = math.log(start), 0
    while gone < 4 and sum(part.tau.numel() for part in parts) < MOST:
        edges = _wide(transform, low) if not parts else torch.tensor([low, low + SHORT], dtype=torch.float64)
        part = _refined(transform, edges)
        parts.append(part)
        low = float(edges[-1])
        gone = gone + 1 if float(part.chi.abs().max()) < GONE else 0
    tau, weight, chi = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("tau", "weight", "chi")
    )
    term = weight * chi.imag / math.pi
    error = sum(part.error for part in parts) / math.pi
    if gone < 4:
        whole, *short = (0.5 - float((term * _step(tau - low + away)).sum()) for away in SHORTER)
        return Below(min(max(whole, 0.0), 1.0), error + max(abs(whole - one) for one in short))
    return Below(min(max(0.5 - float(term.sum()), 0.0), 1.0), error)


def _wide(transform: Transform, low: float) -> Tensor:
    """Edges from `low` to where χ leaves 1."""
    edges = low + WIDE * torch.arange(400, dtype=torch.float64)
    for some in edges.split(16):
        far = ((transform(some.exp()) - 1).abs() > NEAR).nonzero()
        if len(far):
            last = int(far[0, 0]) + int(((some[0] - low) / WIDE).round())
            return edges[: max(last, 1) + 1]
    return edges


def _refined(transform: Transform, edges: Float[Tensor, " e"]) -> _Nodes:
    """Nodes on stretches that are halved until both rules agree."""
    x, full, half = _rules()
    kept, error, count = [], 0.0, 0
    left, right = edges[:-1], edges[1:]
    while len(left):
        reach = (right - left)[:, None] / 2
        tau = left[:, None] + reach * (1 + x)
        chi = transform(tau.flatten().exp()).reshape(tau.shape)
        apart = (reach * chi.imag * (full - half)).sum(1).abs()
        count += tau.numel()
        fine = (apart <= AGREE) | (count > MOST)
        kept.append((tau[fine].flatten(), (reach * full)[fine].flatten(), chi[fine].flatten()))
        error += float(apart[fine].sum())
        middle = (left + right) / 2
        left, right = torch.cat([left[~fine], middle[~fine]]), torch.cat([middle[~fine], right[~fine]])
    tau, weight, chi = (torch.cat(part) for part in zip(*kept, strict=True))
    return _Nodes(tau, weight, chi, error)


@cache
def _rules() -> tuple[Tensor, Tensor, Tensor]:
    """Gauss's rule on [−1, 1], and weights of every second of its nodes alone."""
    x, full = np.polynomial.legendre.leggauss(NODES)
    half = np.zeros(NODES)
    some = x[::2]
    moments = np.zeros(len(some))
    moments[0] = 2.0
    half[::2] = np.linalg.solve(np.polynomial.legendre.legvander(some, len(some) - 1).T, moments)
    return torch.as_tensor(x), torch.as_tensor(full), torch.as_tensor(half)


def _step(tau: Tensor) -> Tensor:
    """1 for τ ≪ 0, and 0 from τ = 0 on: flat to all orders at λ = 0."""
    return torch.special.erfc(4.0 * (tau + 1.1)) / 2
