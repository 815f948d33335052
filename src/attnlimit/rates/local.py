"""The exponent of an error curve between neighbouring n."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.inputs import Array
from attnlimit.rates.logs import checked_errors, checked_sizes


def local_slopes(n: object, errors: Array) -> Float[Tensor, "*batch k"]:
    """−d log error/d log n at each n, a positive number where the error falls: the `local_exponent` of a curve.

    Central differences in log-log (exact for a parabola, also on uneven sizes), one-sided at both ends;
    `errors` has shape (*batch, k) for k sizes n, and so has the result. For curves without noise: noise in
    neighbouring errors is divided by their distance in log n. This is a property of finite n, and no
    asymptotic exponent (`attnlimit.rates`), which it may approach very slowly.

    >>> local_slopes([1, 10, 100], [1.0, 0.1, 0.001])
    tensor([1.0000, 1.5000, 2.0000], dtype=torch.float64)
    """
    sizes = checked_sizes(n, least=2)
    return local_exponents(sizes, torch.from_numpy(checked_errors(errors, sizes)))


def local_exponents(n: Sequence[int], errors: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The same of errors that need no checks; nan for a single n."""
    if len(n) < 2:
        return torch.full_like(errors, torch.nan)
    log_n = torch.tensor(n, dtype=errors.dtype, device=errors.device).log()
    (slope,) = torch.gradient(errors.log(), spacing=(log_n,), dim=-1)
    return -slope
