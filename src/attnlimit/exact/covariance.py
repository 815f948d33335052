"""The error as a vector: its second moments in all directions, and its mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.designs import Sampling
from attnlimit.designs.sampling import PLAIN
from attnlimit.errors import InputError
from attnlimit.exact.error import as_sizes
from attnlimit.exact.prepare import prepare
from attnlimit.inputs import Array, as_vector
from attnlimit.measures import Measure


@dataclass(frozen=True, eq=False, repr=False)
class ErrorCovariance:
    """E (Γ_n(x) − Γ(x))(Γ_n(x) − Γ(x))ᵀ for each query and n, without Monte Carlo."""

    n: tuple[int, ...]
    second: Float[Tensor, "queries n p p"]
    """E (Γ_n − Γ)(Γ_n − Γ)ᵀ, whose trace is the mean square error."""
    bias: Float[Tensor, "queries n p"]
    """E Γ_n − Γ."""
    method: str

    @property
    def covariance(self) -> Float[Tensor, "queries n p p"]:
        """Cov Γ_n."""
        return self.second - self.bias[..., :, None] * self.bias[..., None, :]

    def along(self, direction: Array) -> Float[Tensor, "queries n"]:
        """(E (gᵀ(Γ_n − Γ))²)^½ for a direction g, as long as it is."""
        g = as_vector(direction, self.bias.shape[-1], "direction", like=self.bias)
        return (self.second @ g @ g).clamp_min(0).sqrt()

    def __repr__(self) -> str:
        shape = f"{len(self.bias)} queries, {self.bias.shape[-1]} × {self.bias.shape[-1]}"
        return f"ErrorCovariance({shape}, n = {self.n[0]} … {self.n[-1]}, {self.method})"


def error_covariance(
    head: Head,
    measure: Measure,
    n: int | Sequence[int],
    queries: Array,
    *,
    sampling: Sampling = PLAIN,
    positions: Sequence[int] | Tensor | None = None,
    binned: bool | None = None,
) -> ErrorCovariance:
    """E (Γ_n − Γ)(Γ_n − Γ)ᵀ = ∫ t {n E[w²uuᵀe^{−tw}]φ^{n−1} + n(n−1) m mᵀ φ^{n−2}} dt, m = E[w u e^{−tw}], with the options of
    `exact_error`. It is a quadratic form, gotten from the scalar errors along e_i and e_i + e_j: p(p + 1)/2 of them for p outputs. The
    error in one direction alone is `exact_error(head.along(g), …)`.

    >>> from attnlimit import Gaussian, Head, error_covariance
    >>> head = Head([[1.0, 0.0], [0.0, 1.0]])
    >>> error_covariance(head, Gaussian(dim=2), n=100, queries=[[1.0, 0.0]]).second[0, 0].diagonal()
    tensor([0.0466, 0.0255], dtype=torch.float64)
    """
    if head.heads:
        raise InputError(f"error_covariance takes one head at a time, got {head!r}: use head.each().")
    head.check_fits(measure)
    sizes, x = as_sizes(n), head.rows(queries)
    how: dict[str, Any] = {"sampling": sampling, "positions": positions, "binned": binned}
    many = torch.tensor([sizes], dtype=torch.float64, device=x.device)
    outputs = head.V.shape[-2] if head.factors.V is not None else measure.value_dim
    unit = torch.eye(outputs).to(head.factors.right)
    ready = [prepare(head.along(e), measure, x, max(sizes), **how) for e in unit]
    squares, biases = zip(*(one.moments(many) for one in ready), strict=True)
    second = torch.diag_embed(torch.stack(squares, -1))
    for i in range(outputs):
        for j in range(i):
            both = prepare(head.along(unit[i] + unit[j]), measure, x, max(sizes), **how).moments(many)[0]
            second[..., i, j] = second[..., j, i] = (both - squares[i] - squares[j]) / 2
    return ErrorCovariance(tuple(sizes), second, torch.cat(biases, -1), ready[0].method)
