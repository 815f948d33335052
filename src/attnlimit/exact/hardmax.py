"""Hardmax attention with n keys: how far it is from its limit, by order statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention.head import Head
from attnlimit.errors import InputError
from attnlimit.exact.error import as_sizes
from attnlimit.files.records import Recorded
from attnlimit.inputs import Array, as_counts
from attnlimit.measures import Measure
from attnlimit.numerics.order import normal_maximum


@dataclass(frozen=True, eq=False)
class HardmaxError(Recorded):
    """How far hardmax attention with n keys is from its limit V y*(x), for each query and n."""

    also = ("height",)

    n: tuple[int, ...]
    mean_square: Float[Tensor, "queries n"]
    """E‖(hardmax of n keys) − V y*‖²."""
    bias_square: Float[Tensor, "queries n"]
    """‖E(hardmax of n keys) − V y*‖²; the rest is variance."""
    height_gap: Float[Tensor, "queries n"]
    """E(top score of the support − top score of n keys)."""
    top: Float[Tensor, " queries"]
    """The largest score of the support."""
    method: str

    @property
    def rms(self) -> Float[Tensor, "queries n"]:
        """√E‖(hardmax of n keys) − V y*‖²."""
        return self.mean_square.sqrt()

    @property
    def height(self) -> Float[Tensor, "queries n"]:
        """Mean of the top score of n keys."""
        return self.top[:, None] - self.height_gap

    def __repr__(self) -> str:
        return f"HardmaxError({len(self.top)} queries, n = {self.n[0]} … {self.n[-1]}, {self.method})"


def hardmax_error(head: Head, law: Measure, n: int | Sequence[int], queries: Array) -> HardmaxError:
    """E‖V(y_max − y*)‖² = ∫ n F^{n−1} E[‖V(y − y*)‖² | F] dF, y_max the key of largest score aᵀy among n.

    Sphere and Ball: with c = âᵀy/R of distribution F, V(y − y*) is −(1 − c) R V â plus an orthogonal part of variance
    R²(1 − c²)/(k − 1) in each direction, k = d on the sphere and d + 2 in the ball.
    Finite support (Empirical, sampled with replacement by its weights, and Rademacher): a score level of mass p, of
    mass F with all below it, is the top of n keys with probability Fⁿ − (F − p)ⁿ. Where several keys tie for the top,
    those of them that were drawn are averaged, each as often as it was drawn; scores within rounding of their
    neighbour are ties. A query whose scores are all equal (Ax = 0) averages all n keys.
    n goes up to 10^12. A Gaussian has no limit: see `gaussian_maximum`.

    >>> import torch
    >>> from attnlimit import Head, Sphere
    >>> hardmax_error(Head(torch.eye(3).double()), Sphere(3), n=[10, 10**6], queries=[[1.0, 0.0, 0.0]]).height
    tensor([[0.8182, 1.0000]], dtype=torch.float64)
    """
    sizes, x = checked(head, law, n, queries)
    a = head.score_vector(x)
    if not bool(a.square().sum(-1).isfinite().all()):
        raise InputError(
            f"Queries must have scores whose squares are finite, got some of {float(a.abs().max()):.3g}: only their direction counts, "
            "use smaller ones."
        )
    found = law.largest(sizes, a, head.factors.V)
    if not bool(found.square.isfinite().all()):
        raise OverflowError("squares of the values")
    return HardmaxError(tuple(sizes), found.square, found.bias_square, found.gap, found.top, found.method)


def checked(head: Head, law: Measure, n: object, queries: Array) -> tuple[list[int], Tensor]:
    """Sizes and queries (m, d_query) for one head."""
    if head.heads:
        raise InputError(f"One head at a time, got {head!r}: use head.each().")
    head.check_fits(law)
    return as_sizes(n), head.rows(queries)


@dataclass(frozen=True, eq=False)
class GaussianMaximum(Recorded):
    """Mean and variance of the largest of n independent standard normals."""

    n: tuple[int, ...]
    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    method: str

    def __repr__(self) -> str:
        return f"GaussianMaximum(n = {self.n[0]} … {self.n[-1]}, {self.method})"


def gaussian_maximum(n: int | Sequence[int]) -> GaussianMaximum:
    """E max and Var max of n standard normals, ∫ n Φ^{n−1} g dΦ: √(2 log n) to first order, and slowly so.

    >>> [f"{value:.5f}" for value in gaussian_maximum([10, 10**3, 10**6, 10**9]).mean]
    ['1.53875', '3.24144', '4.86290', '6.08768']
    """
    sizes = as_counts(n)
    mean, variance = normal_maximum(np.array(sizes, dtype=float))
    return GaussianMaximum(tuple(sizes), mean, variance, "exact (order statistics)")
