"""Local slopes of a curve on log-log axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def local_exponents(n: Sequence[int], errors: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """−d log error/d log n at each n: central differences (exact for a parabola, also on uneven sizes), one-sided at
    both ends; nan for a single n."""
    if len(n) < 2:
        return torch.full_like(errors, torch.nan)
    log_n = torch.tensor(n, dtype=errors.dtype, device=errors.device).log()
    (slope,) = torch.gradient(errors.log(), spacing=(log_n,), dim=-1)
    return -slope
