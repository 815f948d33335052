"""What a query needs of a finite prompt: the mean and covariance of its tokens under the attention weights.

Softmax attention: weights p_i ∝ e^{aᵀz_i}, mean z̄ = Σ p_i z_i and covariance C = Σ p_i (z_i − z̄)(z_i − z̄)ᵀ.
Linear attention: with S = (1/L) Σ z_i z_iᵀ, mean S a and derivative S.
Infinitely many tokens: ∇Λ(a) and ∇²Λ(a). In all three C is the derivative of the mean in a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.numerics.compiled import has_numba, run_compiled

CHUNK = 256
"""Tokens that the compiled loop holds in cache at once."""

Means = Float[Tensor, "R M D"]
Covs = Float[Tensor, "R M D D"]


def softmax_moments(
    tokens: Float[Tensor, "R L D"], a: Float[Tensor, "R M D"], lengths: Sequence[int]
) -> tuple[Means, Covs]:
    """Mean and covariance of each row's first lengths[m] tokens under softmax weights of a[:, m].

    In float32 on a CPU one compiled pass over the tokens serves all M models; else a model at a time. The pass takes the
    covariance as a second moment less the mean's square, so tokens should lie around zero, not far from it.
    """
    if tokens.dtype == torch.float32 and tokens.device.type == "cpu" and has_numba():
        mean, cov = torch.empty_like(a), a.new_empty(*a.shape, a.shape[-1])
        sizes = torch.tensor(lengths, dtype=torch.int64)
        run_compiled(_softmax_rows, len(a), tokens.contiguous(), a.contiguous(), sizes, mean, cov)
        return mean, cov
    means, covs = zip(*(_softmax_model(tokens[:, :n], a[:, m]) for m, n in enumerate(lengths)), strict=True)
    return torch.stack(means, 1), torch.stack(covs, 1)


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
    device = generator.device
    T = torch.randn(rows, len(steps), dim, dim, generator=generator, dtype=dtype, device=device).tril_(-1)
    index = torch.arange(dim, device=device)
    half = (torch.tensor(steps, dtype=dtype, device=device)[:, None] - index).clamp_min(1) / 2
    chi2 = 2 * torch._standard_gamma(half.expand(rows, -1, -1).contiguous(), generator=generator)
    T[..., index, index] = chi2.sqrt()
    for k, count in enumerate(steps):
        if count < dim:
            white = torch.randn(rows, dim, count, generator=generator, dtype=dtype, device=device)
            T[:, k] = torch.nn.functional.pad(white, (0, dim - count))
    return _averages(T @ T.mT, order, lengths)


def _averages(parts: Float[Tensor, "R K D D"], order: list[int], lengths: Sequence[int]) -> Covs:
    """Of sums over the tokens from one length to the next in order, those over the first L tokens, divided by L."""
    sums = parts.cumsum(1)
    return torch.stack([sums[:, order.index(length)] / length for length in lengths], 1)


def _softmax_model(z: Float[Tensor, "R L D"], a: Float[Tensor, "R D"]) -> tuple[Tensor, Tensor]:
    p = (z @ a[..., None]).softmax(-2)
    mean = (p * z).sum(-2)
    centred = z - mean[:, None]
    return mean, (p * centred).mT @ centred


def _softmax_rows(
    start: int, stop: int, tokens: Any, a: Any, lengths: Any, mean: Any, cov: Any
) -> None:  # pragma: no cover  (compiled)
    """Rows start … stop − 1: tokens go by in chunks; each model adds Σ w·(1, z, z zᵀ) of those within its length,
    w = e^{score − largest so far}, and scales its sums down when a larger score comes."""
    one = np.float32(1.0)
    L, D, M = tokens.shape[1], tokens.shape[2], a.shape[1]
    F = 1 + D + D * (D + 1) // 2
    feature = np.ones((F, CHUNK), np.float32)
    w, bits = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.int32)
    power = bits.view(np.float32)
    total, top = np.empty((M, F), np.float32), np.empty(M, np.float32)
    for b in range(start, stop):
        total[:] = 0
        top[:] = -np.inf
        for low in range(0, L, CHUNK):
            n = min(CHUNK, L - low)
            k = 1 + D
            for c in range(D):
                for i in range(n):
                    feature[1 + c, i] = tokens[b, low + i, c]
                for d in range(c + 1):
                    for i in range(n):
                        feature[k, i] = feature[1 + c, i] * feature[1 + d, i]
                    k += 1
            for m in range(M):
                n = min(CHUNK, lengths[m] - low)
                if n <= 0:
                    continue
                for i in range(n):
                    w[i] = a[b, m, 0] * feature[1, i]
                for d in range(1, D):
                    for i in range(n):
                        w[i] += a[b, m, d] * feature[1 + d, i]
                high = w[0]
                for i in range(n):
                    high = max(high, w[i])
                if high > top[m]:
                    shrink = np.float32(math.exp(top[m] - high))
                    for k in range(F):
                        total[m, k] *= shrink
                    top[m] = high
                high = top[m]
                # e^x = 2^r p(f): r whole, |f| ≤ ½, p to 1e-7; written out since a call to exp would not vectorise
                for i in range(n):
                    y = max((w[i] - high) * np.float32(1.4426950408889634), np.float32(-126.0))
                    r = np.floor(y + np.float32(0.5))
                    f = y - r
                    p = np.float32(1.5403530393381609e-4)
                    p = p * f + np.float32(1.3333558146428443e-3)
                    p = p * f + np.float32(9.618129107628477e-3)
                    p = p * f + np.float32(5.550410866482158e-2)
                    p = p * f + np.float32(2.402265069591007e-1)
                    p = p * f + np.float32(6.931471805599453e-1)
                    w[i] = p * f + one
                    bits[i] = (np.int32(r) + np.int32(127)) << np.int32(23)
                for i in range(n):
                    w[i] *= power[i]
                for k in range(F):
                    sum_ = np.float32(0.0)
                    for i in range(n):
                        sum_ += w[i] * feature[k, i]
                    total[m, k] += sum_
        for m in range(M):
            k = 1 + D
            for c in range(D):
                mean[b, m, c] = total[m, 1 + c] / total[m, 0]
                for d in range(c + 1):
                    cov[b, m, c, d] = total[m, k] / total[m, 0] - mean[b, m, c] * mean[b, m, d]
                    cov[b, m, d, c] = cov[b, m, c, d]
                    k += 1
