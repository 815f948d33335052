"""Averages of many prompts' tokens under attention, and their derivatives along one direction.

Softmax attention: weights p_i ∝ e^{aᵀz_i}, mean z̄ = Σ p_i z_i and C h with C = Σ p_i (z_i − z̄)(z_i − z̄)ᵀ.
Linear attention: with S = (1/L) Σ z_i z_iᵀ, mean S a and derivative S h.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.normals import fill_white

Means = Float[Tensor, "R M D"]
Covs = Float[Tensor, "R M D D"]


def softmax_moments(
    tokens: Float[Tensor, "R L D"],
    a: Float[Tensor, "R M D"],
    along: Float[Tensor, "R M D"],
    lengths: Sequence[int],
) -> tuple[Means, Means]:
    """Mean of each row's first lengths[m] tokens under softmax weights of a[:, m], and its derivative in a along[:, m].

    In float32 on a CPU one compiled pass over the tokens serves all M models; else a model at a time. The pass takes the
    covariance as a second moment less the mean's square, so tokens should lie around zero, not far from it.
    """
    if tokens.dtype == torch.float32 and tokens.device.type == "cpu" and has_numba():
        from attnlimit.icl.loops import softmax_rows

        mean, push = torch.empty_like(a), torch.empty_like(a)
        sizes = torch.tensor(lengths, dtype=torch.int64)
        inputs = (tokens.mT.contiguous(), a.contiguous(), along.contiguous(), sizes)
        run_compiled(softmax_rows, len(a), *inputs, mean, push)
        return mean, push
    means, pushes = zip(
        *(_softmax_model(tokens[:, :n], a[:, m], along[:, m]) for m, n in enumerate(lengths)), strict=True
    )
    return torch.stack(means, 1), torch.stack(pushes, 1)


def linear_moments(tokens: Float[Tensor, "R L D"], lengths: Sequence[int]) -> Covs:
    """S_m = (1/L) Σ z zᵀ over each row's first L = lengths[m] tokens: each token is used once for all lengths."""
    order = sorted(set(lengths))
    parts = [tokens[:, low:high].mT @ tokens[:, low:high] for low, high in pairwise([0, *order])]
    return _averages(torch.stack(parts, 1), order, lengths)


def wishart_moments(
    rows: int, lengths: Sequence[int], dim: int, generator: torch.Generator, dtype: torch.dtype
) -> Covs:
    """A draw with the law of `linear_moments` of white noise, at a cost that does not grow with the lengths.

    The sum over the tokens between two lengths is Wishart and independent of the rest: T Tᵀ with Bartlett's
    lower triangular T, of standard normals below the diagonal and χ_{k−i} on it; for k < dim the tokens themselves.
    """
    order = sorted(set(lengths))
    steps = [high - low for low, high in pairwise([0, *order])]
    K = len(steps)
    white = white_tokens(rows, dim, K * dim, [generator], dtype).mT.unflatten(1, (K, dim))
    index, count = np.arange(dim), np.array(steps)[:, None]
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    draws = np.random.Generator(np.random.SFC64(seed))
    chi = np.sqrt(draws.chisquare((count - index).clip(1), (rows, K, dim)))
    normal = np.where(count[..., None] >= dim, index[:, None] > index, index < count[..., None])
    T = white * torch.from_numpy(normal).to(white.device)
    T.diagonal(dim1=-2, dim2=-1).add_(torch.from_numpy(chi * (count >= dim)).to(T))
    if not (dtype == torch.float32 and T.device.type == "cpu" and has_numba()):
        return _averages(T @ T.mT, order, lengths)
    from attnlimit.icl.loops import gram_rows

    S = torch.empty_like(T)
    run_compiled(gram_rows, rows, T, torch.tensor(order), S)
    return S if tuple(lengths) == tuple(order) else S[:, [order.index(length) for length in lengths]]


def white_tokens(
    rows: int, length: int, dim: int, generators: Sequence[torch.Generator], dtype: torch.dtype
) -> Float[Tensor, "R L D"]:
    """Standard normal tokens, so many rows from each generator; a dimension of a row lies in one piece."""
    device = generators[0].device
    noise = torch.empty(len(generators), rows, dim, length, dtype=dtype, device=device)
    for part, generator in zip(noise, generators, strict=True):
        if dtype == torch.float32 and device.type == "cpu":
            fill_white(part.flatten(1), generator)
        else:
            part.normal_(generator=generator)
    return noise.flatten(0, 1).mT


def _averages(parts: Float[Tensor, "R K D D"], order: list[int], lengths: Sequence[int]) -> Covs:
    """Of sums over the tokens from one length to the next in order, those over the first L tokens, divided by L."""
    sums = parts.cumsum(1)
    return torch.stack([sums[:, order.index(length)] / length for length in lengths], 1)


def _softmax_model(
    z: Float[Tensor, "R L D"], a: Float[Tensor, "R D"], along: Float[Tensor, "R D"]
) -> tuple[Tensor, Tensor]:
    p = (z @ a[..., None]).softmax(-2)
    mean = (p * z).sum(-2)
    centred = z - mean[:, None]
    return mean, (p * (centred @ along[..., None]) * centred).sum(-2)
