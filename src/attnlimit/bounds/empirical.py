"""The error at a query from the sampled tokens themselves: no knowledge of their law but its radius."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.bounds.hypotheses import FRESH, IID, check_head, radii
from attnlimit.bounds.result import Bound
from attnlimit.errors import HypothesisFailed, InputError
from attnlimit.inputs import Array, Chance, as_positive
from attnlimit.measures import Empirical, Measure
from attnlimit.numerics.softmax import SCORES_AT_ONCE


def empirical(
    head: Head,
    tokens: Measure,
    x: Array,
    delta: Chance,
    *,
    population: Measure | None = None,
    radius: float | None = None,
    value_radius: float | None = None,
) -> Bound:
    """‖Γ_n(x) − Γ(x)‖ ≤ (√(2ℓ/n) S + 16 R_V e^M ℓ/(3n)) / (⟨w⟩ − √(2ℓ/n) T), ℓ = log(3/δ), with probability ≥ 1 − δ,

    w = e^{aᵀk}, S² = ⟨w²‖v − Γ_n‖²⟩, T² = ⟨w²⟩ over the n tokens: an empirical Bernstein bound (after [maurer2009]).
    Value: (*batch,) for queries x (*batch, d_query); R_V + ‖Γ_n‖ where that is less or the denominator is not positive.

    Hypotheses: the tokens are independent draws, equally weighted, of a law in a known bounded set, either
    `population`, the law or the tokens they were drawn from (then M is its largest score), or
    `radius` R with ‖k‖ ≤ R (then M = ‖a‖R), and `value_radius` with ‖v‖ ≤ it before V (R unless given).

    Proof. ξ = w(v − Γ) has mean 0 and norm ≤ b = 2R_V e^M, and Γ_n − Γ = ⟨ξ⟩/⟨w⟩, where ⟨w⟩ is seen.
    (i) ‖⟨ξ⟩‖ ≤ √(2E‖ξ‖² ℓ/n) + 2bℓ/(3n) but for probability 2δ/3 (Bernstein, see `concentration`).
    (ii) ‖ξ‖² ≥ 0 has second moment ≤ b² E‖ξ‖², so by `mean_shortfall` E‖ξ‖² ≤ ⟨‖ξ‖²⟩ + b√(2E‖ξ‖² ℓ/n) but for δ/3,
    whence √E‖ξ‖² ≤ √⟨‖ξ‖²⟩ + b√(2ℓ/n).
    (iii) √⟨‖ξ‖²⟩ ≤ S + T r with r = ‖Γ_n − Γ‖, by the triangle inequality.
    Together r⟨w⟩ ≤ √(2ℓ/n)(S + T r) + (2 + 2/3) bℓ/n; solve for r.
    """
    if not isinstance(tokens, Empirical):
        raise InputError(f"tokens must be an Empirical measure, the sample itself, got {tokens!r}.")
    check_head(head, tokens)
    if tokens.weights is not None:
        raise InputError(
            f"{tokens!r} has weights, but the bound is for independent draws that count alike. Drop the weights."
        )
    a = head.score_vector(head.checked(x))
    high, R_V = _known(head, tokens, a, population, radius, value_radius)
    values = head.read_linear(tokens.values)
    step = max(1, SCORES_AT_ONCE // len(tokens))
    blocks = zip(a.reshape(-1, tokens.dim).split(step), high.reshape(-1).split(step), strict=True)
    value = torch.cat([_solve(b, top, tokens.tokens, values, R_V, delta) for b, top in blocks])
    known = f"radius {radius:g}" if population is None else f"population {population!r}"
    return Bound(
        name="empirical",
        value=value.reshape(a.shape[:-1]),
        kind="high probability, from data",
        formula="‖Γ_n − Γ‖ ≤ (√(2ℓ/n) S + 16 R_V e^M ℓ/(3n)) / (⟨w⟩ − √(2ℓ/n) T), ℓ = log(3/δ)",
        hypotheses=(f"bounded support, known: {known}", IID, FRESH),
        inputs={"R_V": R_V, "largest_score": high, "n": len(tokens), "delta": delta},
        confidence=1 - delta,
    )


def _solve(a: Tensor, high: Tensor, keys: Tensor, values: Tensor, R_V: float, delta: float) -> Tensor:
    """The bound for a block of queries, all weights divided by the sample's largest so that none overflows."""
    scores = a @ keys.T
    largest = scores.amax(-1, keepdim=True)
    w = (scores - largest).exp()
    output = w @ values / w.sum(-1, keepdim=True)
    distance = torch.cdist(output, values, compute_mode="donot_use_mm_for_euclid_dist")
    n, log_term = len(keys), math.log(3 / delta)
    root = math.sqrt(2 * log_term / n)
    S, T = (w * distance).square().mean(-1).sqrt(), w.square().mean(-1).sqrt()
    unseen = (high - largest[..., 0]).clamp_min(0).exp()  # how much heavier a key not yet seen may be
    top = root * S + 16 * R_V * unseen * log_term / (3 * n)
    bottom = w.mean(-1) - root * T
    trivial = R_V + output.norm(dim=-1).clamp_max(R_V)
    bound = torch.where(bottom > 0, top / bottom.clamp_min(torch.finfo(a.dtype).tiny), torch.inf)
    return torch.minimum(bound, trivial)


def _known(
    head: Head,
    tokens: Empirical,
    a: Tensor,
    population: Measure | None,
    radius: float | None,
    values_within: float | None,
) -> tuple[Tensor, float]:
    """The largest score each query can meet, and R_V, from what is known of the support; seen tokens must agree."""
    if population is not None and radius is None and values_within is None:
        R, R_V = radii(head, population, "empirical")
        _contains(R, tokens.radius, "the population's radius", "a key")
        high = population.score_range(a)[1]
    elif population is None and radius is not None:
        R = as_positive(radius, "radius")
        _contains(R, tokens.radius, "radius", "a key")
        R_values = R if values_within is None else as_positive(values_within, "value_radius")
        _contains(R_values, float(tokens.values.norm(dim=-1).max()), "value_radius", "a value")
        V = head.factors.V
        high = R * a.norm(dim=-1)
        return high, R_values if V is None else R_values * float(torch.linalg.matrix_norm(V, 2))
    else:
        raise InputError(
            "Give either population=, what the tokens were drawn from, or radius= (and value_radius= if values "
            "differ from keys): a sample alone cannot exclude a rare key heavier than all it has seen."
        )
    _contains(R_V, tokens.value_radius(head.factors.V), "the population's value radius", "a projected value")
    return high, R_V


def _contains(limit: float, seen: float, what: str, who: str) -> None:
    if seen > limit * (1 + 1e-6):
        raise HypothesisFailed(
            f"{what} = {limit:.6g} was given, but {who} in the sample has norm {seen:.6g}: "
            "the bound would rest on a false range. Give the radius of the whole support."
        )
