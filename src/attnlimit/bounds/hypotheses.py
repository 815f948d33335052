"""What the bounds ask of a head and a law, and the sizes they read off them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head, LinearHead
from attnlimit.errors import HypothesisFailed, InputError, NotKnown
from attnlimit.inputs import as_counts
from attnlimit.measures import Empirical, FromSampler, Gaussian, Measure, Mixture
from attnlimit.measures.product import Bounded
from attnlimit.measures.sphere import Radial
from attnlimit.numerics.softmax import SCORES_AT_ONCE

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
    if seen_through_points(law):
        raise HypothesisFailed(
            f"The {bound} bound needs a known radius of the support, but {law!r} is seen through its points only: "
            f"they reach {law.radius:.4g}, and other tokens may lie farther out. "
            "Bound a population with Empirical(tokens), or write the law as a Measure with its own radius."
        )


def seen_through_points(law: Measure) -> bool:
    """Whether the law, or a part of it, is known through a sampler alone."""
    if isinstance(law, FromSampler):
        return True
    return isinstance(law, Mixture) and any(seen_through_points(part) for part in law.parts)


def check_delta(delta: float) -> float:
    """A probability of failure strictly between 0 and 1."""
    if isinstance(delta, bool) or not isinstance(delta, int | float | np.number) or not 0 < delta < 1:
        raise InputError(
            f"delta is the probability that the bound fails, between 0 and 1 exclusive, got {delta!r}."
        )
    return float(delta)


# --- sizes ------------------------------------------------------------------------------------------


def value_reach(head: Head, law: Measure) -> float:
    """R_V = sup ‖V y‖ over the support: exact for tokens, ‖V‖₂ R for laws. b_v cancels in differences."""
    if isinstance(law, Mixture):
        return max(value_reach(head, part) for part in law.parts)
    if isinstance(law, Empirical):
        return float(head.read_linear(law.values[law.probabilities > 0]).norm(dim=-1).max())
    V = head.factors.V
    return law.radius if V is None else law.radius * float(torch.linalg.matrix_norm(V, 2))


def score_range(law: Measure, a: Float[Tensor, "*batch d"]) -> tuple[Tensor, Tensor]:
    """The least and largest score aᵀy over the support, each (*batch,); ∓R‖a‖ where the top is not known."""
    if isinstance(law, Mixture):
        ranges = [score_range(part, a) for part in law.parts]
        lows, highs = (torch.stack(ends) for ends in zip(*ranges, strict=True))
        return lows.amin(0), highs.amax(0)
    if isinstance(law, Empirical):
        tokens = law.tokens[law.probabilities > 0]
        scores = [b @ tokens.T for b in a.reshape(-1, law.dim).split(max(1, SCORES_AT_ONCE // len(tokens)))]
        low, high = (torch.cat([end(s, -1) for s in scores]) for end in (torch.amin, torch.amax))
        return low.reshape(a.shape[:-1]), high.reshape(a.shape[:-1])
    try:
        return (law.top(-a) * a).sum(-1), (law.top(a) * a).sum(-1)
    except NotKnown:
        reach = law.radius * a.norm(dim=-1)
        return -reach, reach


def log_chi2(law: Measure, a: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """D(a) = Λ(2a) − 2Λ(a) = log E w̃² ≥ 0, w̃ = e^{aᵀy − Λ(a)}."""
    return (law.cgf(2 * a) - 2 * law.cgf(a)).clamp_min(0)


def log_chi2_slope(law: Measure) -> float:
    """An s with D(a) ≤ s‖a‖² for all a.

    D(a) = ∫₀¹ 2 ∫_t^{2t} aᵀ∇²Λ(ua)a du dt, so s = sup ‖∇²Λ‖ will do. That is the variance proxy σ² for Gaussians,
    spheres, balls, boxes and signs (tilting only narrows them), and at most R² for any law in a ball of radius R,
    or the squared distance from the mean (Popoviciu). A proxy alone gives s = 2σ²: Λ(2a) − 2aᵀm ≤ 2σ²‖a‖² and
    Λ(a) ≥ aᵀm. The 2 is needed: for y ∈ {−1, 0, 1} with P(y = ±1) = e^{−c} each, D(a)/a² reaches 2σ² as c → ∞.
    """
    proxy = law.variance_proxy
    if proxy is None:
        return law.radius**2
    if isinstance(law, Gaussian | Radial | Bounded | Empirical):
        return min(proxy, law.radius**2)
    return min(2 * proxy, law.radius**2)


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


def token_counts(n: object, like: Tensor) -> tuple[Float[Tensor, " k"], bool]:
    """The numbers of tokens as floats, and whether n was a single one (which then adds no axis)."""
    several = isinstance(n, Sequence | range) or (isinstance(n, torch.Tensor | np.ndarray) and n.ndim > 0)
    return torch.tensor(as_counts(n), dtype=like.dtype, device=like.device), not several
