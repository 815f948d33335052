"""Local slopes of a curve on log-log axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def local_exponents(n: Sequence[int], errors: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """−d log error/d log n at each n, by second-order differences (one-sided at the ends); nan for a single n."""
    if len(n) < 2:
        return torch.full_like(errors, torch.nan)
    log_n, log_error = np.log(np.asarray(n, float)), errors.clamp_min(1e-300).log().numpy()
    return torch.as_tensor(-np.gradient(log_error, log_n, edge_order=min(2, len(n) - 1)))
