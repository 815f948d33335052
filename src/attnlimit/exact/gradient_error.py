"""How far the gradients of n-token attention are from those of its limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError, NotKnown
from attnlimit.exact.error import as_sizes, exact_error
from attnlimit.exact.prepare import moderate
from attnlimit.inputs import Array
from attnlimit.measures import Empirical, Measure
from attnlimit.numerics.caps import RESOLUTION
from attnlimit.numerics.quartic import Quartic


@dataclass(frozen=True, eq=False, repr=False)
class GradientError:
    """Mean square errors of the derivatives of Γ_n(x) by the head's matrices, for each query and n."""

    n: tuple[int, ...]
    scores: Float[Tensor, "queries n"]
    """Of ∂Γ/∂A[E] = V C E x, C the covariance of keys under attention: E‖V(C_n − C)‖_F² ‖x‖²."""
    values: Float[Tensor, "queries n"]
    """Of ∂Γ/∂V[E] = E ȳ, for each row of V: E‖ȳ_n − ȳ‖²."""
    method: str = "exact (Laplace quadrature)"

    def to_dict(self) -> dict[str, Any]:
        arrays = {"scores": self.scores.tolist(), "values": self.values.tolist()}
        return {"n": list(self.n), **arrays, "method": self.method}

    def __repr__(self) -> str:
        return f"GradientError({len(self.scores)} queries, n = {self.n[0]} … {self.n[-1]}, {self.method})"


def gradient_error(head: Head, measure: Measure, n: int | Sequence[int], queries: Array) -> GradientError:
    """E‖V(C_n − C)‖_F² ‖x‖² and E‖ȳ_n − ȳ‖² for n independent keys of a Gaussian law or a population.

    With u = V(y − ȳ), k = y − ȳ, g = ukᵀ − VC and U = Σ wu, K = Σ wk, G = Σ wg, V(C_n − C) = (W G − U Kᵀ)/W²: its square is of fourth
    degree over W⁴, and 1/W⁴ = ⅙ ∫ t³e^{−tW} dt.

    >>> from attnlimit import Gaussian, Head
    >>> found = gradient_error(Head([[1.0]]), Gaussian(dim=1), [2, 10], [[1.0]])
    >>> found.scores, found.values
    (tensor([[0.6625, 0.2453]], dtype=torch.float64), tensor([[1.0728, 0.2974]], dtype=torch.float64))
    """
    head.check_fits(measure)
    if head.heads:
        raise InputError(f"gradient_error takes one head at a time, got {head!r}: use head.each().")
    sizes = as_sizes(n)
    x = head.rows(queries)
    plain = Head._of(replace(head.factors, V=None, value_bias=None))
    values = exact_error(plain, measure, sizes, x, binned=False if measure.population is not None else None)
    a = head.score_vector(x)
    if measure.population is not None:
        tokens = measure.population
        each = [_population(head, tokens, one, sizes) for one in a]
    elif measure.quadratic:
        each = [_gaussian(head, measure, one, sizes) for one in moderate(a, measure, MOST_SPREAD)]
    else:
        raise NotKnown(
            f"Gradients at finite n are known exactly for Gaussian tokens and for populations, not for {measure!r}: use a large "
            "sample as a population, law.sample(n, generator=…), or icl.concentration (Monte Carlo)."
        )
    length = x.double().square().sum(-1, keepdim=True)
    return GradientError(tuple(sizes), torch.stack(each) * length, values.mean_square)


def _population(head: Head, tokens: Empirical, a: Tensor, sizes: list[int]) -> Float[Tensor, " n"]:
    there = tokens.probabilities > 0
    keys, mass = tokens.tokens[there].double(), tokens.probabilities[there].double()
    values = head.read_linear(tokens.values[there]).double()
    scores = keys @ a.double()
    p = (scores + mass.log()).softmax(0)
    u, k = values - p @ values, keys - p @ keys
    ready = Quartic.of(scores - scores.max(), mass, max(sizes))
    pairs = [(c, d) for c in range(u.shape[1]) for d in range(k.shape[1])]
    rows, columns = (torch.tensor(part) for part in zip(*pairs, strict=True))
    return _products(ready, u, k, u.T @ (p[:, None] * k), (rows, columns), (rows, columns), sizes).sum(1)


def _products(
    ready: Quartic,
    u: Float[Tensor, "j c"],
    k: Float[Tensor, "j d"],
    limit: Float[Tensor, "c d"],
    one: tuple[Tensor, Tensor],
    other: tuple[Tensor, Tensor],
    sizes: list[int],
) -> Float[Tensor, "n e"]:
    """E D_{ab} D_{cd} for D = (W G − U Kᵀ)/W², G of ukᵀ less its mean in the limit, at entries `one` (a, b) and `other` (c, d)."""
    (ua, kb), (uc, kd) = ((u[:, row], k[:, column]) for row, column in (one, other))
    g, h = (ua * kb - limit[one], uc * kd - limit[other])
    found = ready.mean([None, None, g, h], sizes) + ready.mean([ua, kb, uc, kd], sizes)
    return found - ready.mean([None, ua, kb, h], sizes) - ready.mean([None, uc, kd, g], sizes)


MOST_SPREAD = 40
"""Of scores of Gaussian tokens; time and memory grow with its square."""
HERMITE = 3
"""Nodes across the scores' direction: exact, for nothing there is of more than fourth degree."""


def _gaussian(head: Head, law: Measure, a: Tensor, sizes: list[int]) -> Float[Tensor, " n"]:
    """In white coordinates the error D of the covariance is the same for all turns around the direction e of the scores, so five
    moments, of three coordinates, tell E tr(M D N D) with M = Σ^{1/2}VᵀVΣ^{1/2} and N = Σ. P is what is across e."""
    white = law.proxy_root(a[None])[0].double()
    s = float(white.norm())
    own, mixed, along, across, off = _white(s, sizes)
    root, cov = law.proxy_root(head.V).double(), law.covariance.double()
    M = root.T @ root
    e = white / s if s > 0 else torch.eye(law.dim, dtype=torch.float64)[0]
    P = torch.eye(law.dim, dtype=torch.float64) - torch.outer(e, e)
    turn = e @ cov @ P @ M @ e
    m, n, pm, pn = e @ M @ e, e @ cov @ e, (P @ M).trace(), (P @ cov).trace()
    both = (P @ M @ P @ cov).trace()
    return (
        own * m * n
        + 2 * along * turn
        + mixed * (2 * turn + m * pn + n * pm)
        + (across + off) * both
        + off * pm * pn
    )


def _white(s: float, sizes: list[int]) -> Float[Tensor, "5 n"]:
    """E D₁₁², E D₁₂², E D₁₁D₂₂, E D₂₂D₃₃ and E D₂₃² of standard normal keys in R³ with scores s y₁."""
    step = RESOLUTION / max(1.0, s)
    y = torch.arange(-9.0, min(12.0, 9.0 + 4 * s), step, dtype=torch.float64)
    nodes, weights = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(HERMITE))
    weights = weights / weights.sum()
    density = torch.exp(-0.5 * y.square()) * step / math.sqrt(2 * math.pi)
    mass = (density[:, None, None] * weights[:, None] * weights).flatten()
    keys = torch.cartesian_prod(y, nodes, nodes)
    ready = Quartic.of(s * keys[:, 0], mass, max(sizes))
    entries = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [1, 1, 2, 2], [1, 2, 1, 2]]).T
    centred = keys - torch.tensor([s, 0.0, 0.0], dtype=torch.float64)
    one, other = (entries[0], entries[1]), (entries[2], entries[3])
    # the covariance under the limit's attention, whose bulk the nodes need not reach, is known
    return _products(ready, centred, centred, torch.eye(3, dtype=torch.float64), one, other, sizes).T
