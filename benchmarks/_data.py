"""The data that attention benchmarks share, and the fused kernel they are measured against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

DIM = 64


def draw_keys(n: int) -> Tensor:
    """Standard normal, (n, DIM), float32."""
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(0))


def draw_queries(m: int) -> Tensor:
    """(m, DIM), float32, such that the scores of `draw_keys` have variance about one."""
    return torch.randn(m, DIM, generator=torch.Generator().manual_seed(1)) / DIM**0.5


def sdpa(queries: Tensor, keys: Tensor) -> Tensor:
    """One fused call, with score qᵀk and the keys as values."""
    q, k = queries[None, None], keys[None, None]
    return scaled_dot_product_attention(q, k, k, scale=1.0)[0, 0]
