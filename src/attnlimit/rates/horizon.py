"""The horizon of a head on a law: how far its scores spread, in one number."""

from __future__ import annotations

from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.errors import InputError
from attnlimit.measures import Measure

Rows: TypeAlias = Float[Tensor, "*heads _ _"]
MOST_DIM = 2_048
"""Of tokens for which a head is made to have a horizon: eigenvalues of larger matrices are not waited for."""
KINDS = ("two-sided", "one-sided", "row-space")


def horizon(
    head: Head, law: Measure, kind: str = "two-sided", *, queries: Measure | None = None
) -> float | Tensor:
    """How far the scores yᵀAx of a head spread on a law with covariance Σ; A = KᵀQ/√d_h has its 1/√d_h inside.

    - "two-sided": H = ‖Σ^{1/2} A Σ^{1/2}‖₂, the one the rates use [bohbot2026token]. For Gaussian tokens, the
      scores of a query x ~ N(0, Σ) have standard deviation s = H|g| along the top direction, g ~ N(0, 1).
    - "one-sided": ‖Σ^{1/2} A‖₂, the largest standard deviation of the scores of a query of norm 1.
    - "row-space": Λ_A = λ_max(P_A Σ P_A), P_A the projector on the row space of A, where queries are read:
      the largest variance of the queries that the head can see. It is a variance, and ignores the size of A.

    Σ is the covariance of the tokens; for a law that is not Gaussian this is the covariance's horizon, which
    says nothing of tails. `queries` is the law of the queries when it is not that of the keys, and its
    covariance then stands on the query side. Means and biases do not enter.

    A float, or a tensor of shape (*heads,) for several heads. With A = L R kept in factors, H² is
    λ_max((RΣRᵀ)(LᵀΣL)), of size r × r, and no d × d matrix is made unless the law itself holds one.

    >>> from attnlimit import Gaussian
    >>> round(horizon(Head([[2.0, 0.0], [0.0, 3.0]]), Gaussian(cov=[0.5, 0.1])), 12)
    1.0
    """
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
    head.check_fits(law)
    asked = _query_law(head, law, queries)
    left, right = _factors(head)
    if kind == "row-space":
        value = largest(asked.spread(_row_space(left, right)))
    elif kind == "one-sided":
        seen = torch.eye(head.query_dim).to(left) if right is None else right @ right.mT
        value = top_horizon(seen, law.spread(left))
    else:
        value = top_horizon(asked.spread(right), law.spread(left))
    return value.to(head.factors.right.dtype) if head.heads else float(value)


def _factors(head: Head) -> tuple[Rows | None, Rows | None]:
    """(Lᵀ, R) with A = L R in float64, None for an identity, so that both products are as small as they can be."""
    left, right = head.factors.left, head.factors.right.double()
    if left is not None:
        return left.double().mT, right
    return (right.mT, None) if head.query_dim < head.key_dim else (None, right)


def _query_law(head: Head, law: Measure, queries: Measure | None) -> Measure:
    asked = law if queries is None else queries
    if asked.dim != head.query_dim:
        raise InputError(
            f"The head reads {head.query_dim}-dimensional queries, but {asked!r} has dimension {asked.dim}: "
            "give the law of the queries, queries=…, of that dimension."
        )
    if asked.device != law.device:
        raise InputError(f"queries are on {asked.device}, the law on {law.device}: move one of them.")
    return asked


def _row_space(left: Rows | None, right: Rows | None) -> Rows:
    """An orthonormal basis of the row space of A = L R, zero rows where the rank is not full."""
    if left is not None:  # L = Q T with Q orthonormal, so A and T R have the same rows
        upper = torch.linalg.qr(left.mT).R
        right = upper if right is None else upper @ right
    if right is None:
        raise ValueError("at most one factor is the identity")
    _, sigma, basis = torch.linalg.svd(right, full_matrices=False)
    rounding = max(right.shape[-2:]) * torch.finfo(right.dtype).eps * sigma.amax(-1, keepdim=True)
    return basis * (sigma > rounding)[..., None]


def top_horizon(
    query_cov: Float[Tensor, "*q r r"], key_cov: Float[Tensor, "*k r r"], scale: float | Tensor = 1.0
) -> Float[Tensor, "*heads"]:
    """scale · √λ_max(Cov q · Cov k), the horizon of queries and keys as a head has projected them.

    The product of two positive semi-definite matrices is not symmetric, but has the eigenvalues of RᵀCov q R with
    Cov k = R Rᵀ, a symmetric problem. Leading axes are broadcast.

    >>> top_horizon(torch.diag(torch.tensor([4.0, 1.0])), torch.diag(torch.tensor([1.0, 9.0])), scale=0.5)
    tensor(1.5000)
    """
    values, vectors = torch.linalg.eigh(key_cov)
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return scale * largest(root.mT @ query_cov @ root).sqrt()


def largest(matrix: Float[Tensor, "*heads r r"]) -> Float[Tensor, "*heads"]:
    """λ_max of a positive semi-definite matrix."""
    return torch.linalg.eigvalsh(matrix).amax(-1).clamp_min(0)
