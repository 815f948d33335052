"""Averages of many prompts' tokens under attention, and their derivatives along one direction.

Softmax attention: weights p_i ∝ e^{aᵀz_i}, mean z̄ = Σ p_i z_i and C h with C = Σ p_i (z_i − z̄)(z_i − z̄)ᵀ.
Linear attention: with S = (1/L) Σ z_i z_iᵀ, mean S a and derivative S h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, UInt32
from torch import Tensor

from attnlimit.numerics.compiled import has_numba, run_compiled
from attnlimit.numerics.normals import FARTHEST, chebyshev, chi_of_normal, white_key, white_rows

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

        inputs = [part.mT.contiguous() for part in (tokens, a, along)]
        mean, push = torch.empty_like(inputs[1]), torch.empty_like(inputs[1])
        run_compiled(softmax_rows, len(a), *inputs, torch.tensor(lengths), mean, push)
        return mean.mT, push.mT
    means, pushes = zip(
        *(_softmax_model(tokens[:, :n], a[:, m], along[:, m]) for m, n in enumerate(lengths)), strict=True
    )
    return torch.stack(means, 1), torch.stack(pushes, 1)


def linear_moments(tokens: Float[Tensor, "R L D"], lengths: Sequence[int]) -> Covs:
    """S_m = (1/L) Σ z zᵀ over each row's first L = lengths[m] tokens: each token is used once for all lengths."""
    order = sorted(set(lengths))
    parts = [tokens[:, low:high].mT @ tokens[:, low:high] for low, high in pairwise([0, *order])]
    return _averages(torch.stack(parts, 1), order, lengths)


@dataclass(frozen=True, eq=False)
class White:
    """Standard normal tokens of `rows` prompts for each key, which stand for them until they are looked at: compiled loops draw a prompt,
    see it and forget it."""

    keys: UInt32[np.ndarray, "S 2"]
    rows: int
    length: int
    dim: int

    def tensor(self) -> Float[Tensor, "R L D"]:
        noise = torch.cat([white_rows(self.rows * self.dim, self.length, key) for key in self.keys])
        return noise.unflatten(0, (-1, self.dim)).mT


@dataclass(frozen=True, eq=False)
class Wishart:
    """A draw with the law of `linear_moments` of white noise, at a cost that does not grow with the lengths.

    The sum over the tokens between two lengths is Wishart and independent of the rest: T Tᵀ with Bartlett's
    lower triangular T, of standard normals below the diagonal and χ_{k−i} on it; for k < dim the tokens themselves.
    """

    white: White | Float[Tensor, "R DDK 1"]
    """Normals that T is made of."""
    order: tuple[int, ...]
    """The K lengths."""
    kept: Float[Tensor, "D D K"]
    """Which of them T has off its diagonal."""
    diagonal: Float[Tensor, "terms D K"]
    """And what becomes of those on it: `chi_of_normal`."""

    @classmethod
    def draw(
        cls,
        rows: int,
        lengths: Sequence[int],
        dim: int,
        generators: Sequence[torch.Generator],
        dtype: torch.dtype,
    ) -> Wishart:
        order, device = tuple(sorted(set(lengths))), generators[0].device
        white = white_tokens(rows, dim * dim * len(order), 1, generators, dtype)
        return cls(white, order, *(part.to(device, dtype) for part in _bartlett(order, dim)))

    def tensor(self, lengths: Sequence[int]) -> Covs:
        white = self.white.tensor() if isinstance(self.white, White) else self.white
        white = white.reshape(-1, *self.kept.shape)
        T = white * self.kept
        T.diagonal(dim1=1, dim2=2).copy_(
            chebyshev(white.diagonal(dim1=1, dim2=2).mT / FARTHEST, self.diagonal).mT
        )
        T = T.movedim(-1, 1)
        return _averages(T @ T.mT, list(self.order), lengths)


@lru_cache(maxsize=8)
def _bartlett(order: tuple[int, ...], dim: int) -> tuple[Float[Tensor, "D D K"], Float[Tensor, "terms D K"]]:
    count, index = np.diff(order, prepend=0), np.arange(dim)[:, None]
    full = count >= dim
    diagonal = chi_of_normal((count - index).clip(1)) * full
    diagonal[1] += FARTHEST * (index < count) * ~full  # a token's own number
    kept = np.where(full, index[:, None] > index, index < count).astype(float)
    return torch.from_numpy(kept), torch.from_numpy(np.ascontiguousarray(diagonal))


def white_tokens(
    rows: int, length: int, dim: int, generators: Sequence[torch.Generator], dtype: torch.dtype
) -> White | Float[Tensor, "R L D"]:
    """Standard normal tokens, so many rows from each generator; a dimension of a row lies in one piece."""
    device = generators[0].device
    if dtype == torch.float32 and device.type == "cpu":
        return White(np.stack([white_key(generator) for generator in generators]), rows, length, dim)
    noise = torch.empty(len(generators), rows, dim, length, dtype=dtype, device=device)
    for part, generator in zip(noise, generators, strict=True):
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
