"""What the bounds ask of a head and a law, and the sizes they read off them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head, LinearHead
from attnlimit.errors import HypothesisFailed, InputError
from attnlimit.inputs import as_counts, whole
from attnlimit.measures import Measure

COMPACT = "keys have compact support, ‖y‖ ≤ R"
IID = "the n tokens are independent draws from the law"
FRESH = "the query does not depend on the tokens, so it is none of them"

# --- checks -----------------------------------------------------------------------------------------


def check_head(head: Head, law: Measure) -> None:
    """One softmax head that fits the law."""
    if isinstance(head, LinearHead):
        raise InputError(f"The bounds are for softmax attention, got {head!r}: pass the softmax head itself.")
    if head.heads:
        raise InputError(
            f"A bound takes one head at a time, got {head!r}: each head has its own constants. Loop over the heads."
        )
    head.check_fits(law)


def check_compact(law: Measure, bound: str) -> float:
    """R, the radius of the support; refused when it is infinite or not known for certain."""
    check_known(law, bound)
    if law.radius == math.inf:
        raise HypothesisFailed(
            f"The {bound} bound needs compact support, but {law!r} has radius = inf: one far token could move "
            "the output by any amount. Use attnlimit.exact_error or attnlimit.clt, or a population Empirical(tokens)."
        )
    return law.radius


def check_known(law: Measure, bound: str) -> None:
    """The radius and variance proxy of a law known through a sampler are those of its points, not its own."""
    if not law.support_known:
        raise HypothesisFailed(
            f"The {bound} bound needs a known radius of the support, but {law!r} is seen through its points only: "
            f"they reach {law.radius:.4g}, and other tokens may lie farther out. "
            "Bound a population with Empirical(tokens), or write the law as a Measure with its own radius."
        )


def check_finite(law: Measure, a: Float[Tensor, "*batch d"], bound: str, what: str) -> None:
    """Whether a moment of the weights is finite."""
    if not bool(law.in_domain(a).all()):
        raise HypothesisFailed(
            f"The {bound} bound needs {what} finite, but {law!r} has that only on {law.domain}: the weights have too few "
            "moments. Use smaller scores, head.scaled(kappa)."
        )


# --- sizes ------------------------------------------------------------------------------------------


def radii(head: Head, law: Measure, bound: str) -> tuple[float, float]:
    """R and R_V = sup ‖V v‖ for one softmax head and a law that fits it, of compact support: all that is checked."""
    check_head(head, law)
    return check_compact(law, bound), law.value_radius(head.factors.V)


def log_chi2(law: Measure, a: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """D(a) = Λ(2a) − 2Λ(a) = log E w̃² ≥ 0, w̃ = e^{aᵀy − Λ(a)}."""
    return (law.cgf(2 * a) - 2 * law.cgf(a)).clamp_min(0)


def score_norm(head: Head) -> float:
    """‖A‖₂, from the triangular factors of its two sides when A is factored."""
    right, left = head.factors.right, head.factors.left
    if left is None:
        return float(torch.linalg.matrix_norm(right, 2))
    inner = torch.linalg.qr(left, mode="r").R @ torch.linalg.qr(right.mT, mode="r").R.mT
    return float(torch.linalg.matrix_norm(inner, 2))


def score_reach(head: Head, radius: float) -> float:
    """sup ‖a‖ over queries ‖x‖ ≤ r: at most ‖A‖ r + ‖A b_q‖, with the query's bias in score space."""
    origin = head.score_vector(head.factors.right.new_zeros(head.query_dim))
    return score_norm(head) * radius + float(origin.norm())


class Counts(NamedTuple):
    """The numbers of tokens as floats, and whether there is a single one, which then adds no axis."""

    n: Float[Tensor, " k"]
    single: bool

    def of(self, value: Float[Tensor, "*batch k"]) -> Tensor:
        """The value as a bound has it."""
        return value[..., 0] if self.single else value


def token_counts(n: object, like: Tensor) -> Counts:
    several = isinstance(n, Sequence | range) or (isinstance(n, torch.Tensor | np.ndarray) and n.ndim > 0)
    counts = as_counts(n, check=whole(1, 10**300))
    return Counts(torch.tensor(counts, dtype=like.dtype, device=like.device), not several)
