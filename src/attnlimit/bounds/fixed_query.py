"""The error at a query, with high probability."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from attnlimit.attention import Head, clt
from attnlimit.attention.clt import CLT
from attnlimit.bounds.concentration import bernstein, hoeffding, mean_shortfall
from attnlimit.bounds.hypotheses import COMPACT, FRESH, IID, radii, token_counts
from attnlimit.bounds.light_tails import SUBGAUSSIAN, LightTails
from attnlimit.bounds.result import Bound, Inputs
from attnlimit.inputs import Array, Chance
from attnlimit.measures import Measure


def fixed_query(head: Head, law: Measure, x: Array, n: object, delta: Chance) -> Bound:
    """‖Γ_n(x) − Γ(x)‖ ≤ U min(1, e^{M−m} √(2 log(2/δ)/n), Bernstein) with probability ≥ 1 − δ, U = R_V + ‖Γ(x)‖,

    m and M the least and largest score aᵀy over the support, so that M − m ≤ 2ρ, ρ = ‖a‖R. Value: (*batch,) for
    queries x (*batch, d_query), or (*batch, k) for k values of n.

    Hypotheses: compact support; independent tokens. Proof: with w̃ = e^{aᵀy − Λ(a)} and u = Vy − Γ,
    Γ_n − Γ = ⟨w̃u⟩/⟨w̃⟩ over the n tokens, E w̃u = 0 and E w̃ = 1.
    Hoeffding: ‖w̃u‖ ≤ e^{M−Λ}U and ⟨w̃⟩ ≥ e^{m−Λ}; Λ cancels in the ratio, hence e^{2ρ} where bounding w̃ from both
    sides by e^{±2ρ} would give e^{4ρ}.
    Bernstein: E‖w̃u‖² is the trace of the central limit covariance, E w̃² = e^D; with δ/2 for ⟨w̃u⟩ from above and
    δ/2 for ⟨w̃⟩ from below. The smaller of the two does not depend on the sample, so taking it costs no δ.

    Sub-Gaussian tokens without bounded support: the same quotient, with Chebyshev or a truncated Bernstein for ⟨w̃u⟩ (see `_light`).
    """
    regime = _light if law.radius == math.inf else _compact
    value, formula, support, inputs = regime(head, law, x, n, delta)
    inputs, why = inputs | {"delta": delta}, (support, IID, FRESH)
    return Bound("fixed_query", value, "high probability", formula, why, inputs, confidence=1 - delta)


Found: TypeAlias = tuple[Tensor, str, str, Inputs]
"""Value, formula, what is asked of the law's support, inputs."""


def _compact(head: Head, law: Measure, x: Array, n: object, delta: float) -> Found:
    R, R_V = radii(head, law, "fixed query")
    x = head.checked(x)
    a = head.score_vector(x)
    sizes = token_counts(n, a)
    low, high = law.score_range(a)
    reach = R_V + head.read_linear(law.tilted_mean(a)).norm(dim=-1).clamp_max(R_V)
    crude = hoeffding((reach * (high - low).exp())[..., None], sizes.n, delta)
    limit, largest = clt(head, law, x), (reach * (high - law.cgf(a)).exp())[..., None]
    fine = _quotient(bernstein(_variance(limit), largest, sizes.n, delta / 2), limit, sizes.n, delta)
    value = sizes.of(torch.minimum(torch.minimum(crude, fine), reach[..., None]))
    formula = "‖Γ_n − Γ‖ ≤ (R_V + ‖Γ‖) min(1, e^(M−m) √(2 log(2/δ)/n), Bernstein with E‖w̃u‖² and E w̃² = e^D)"
    inputs: Inputs = {"R": R, "R_V": R_V, "rho": R * a.norm(dim=-1), "score_range": high - low}
    return value, formula, COMPACT, inputs


def _light(head: Head, law: Measure, x: Array, n: object, delta: float) -> Found:
    """⟨w̃⟩ is held from below with δ/2, and ‖⟨w̃u⟩‖ from above with δ/2, by the smaller of

    - Chebyshev, √(2v/(nδ)), v = E‖w̃u‖² the trace of the central limit covariance;
    - Bernstein for w̃u where w̃ ≤ B and ‖u‖ ≤ U. Each fails for a token with probability ≤ δ/(8n): P(w̃ > B) ≤ B^{−k} e^{Λ(ka) − kΛ(a)}, the best k of
      some, and U = reach(log 8n/δ)^{1/2} + h, h = ‖Γ − Vm‖. So no token is cut but for δ/4; cut terms have norm ≤ 2BU around their mean,
      which is off zero by at most E[‖w̃u‖; cut] ≤ √(vδ/(4n)); and Bernstein takes the other δ/4.

    And ‖Γ_n − Γ‖ ≤ max‖u_i‖ ≤ reach(log n/δ)^{1/2} + h in any case."""
    light, x = LightTails.of(head, law, "fixed query"), head.checked(x)
    a, limit = head.score_vector(x), clt(head, law, x)
    sizes = token_counts(n, a)
    count, v = sizes.n, _variance(limit)
    h = head.read_linear(law.tilted_mean(a) - law.mean).norm(dim=-1)[..., None]
    rare = (8 * count / delta).log()
    powers = (2, 3, 4, 6, 8, 12, 16, 24)
    log_B = torch.stack([((law.cgf(k * a) - k * law.cgf(a))[..., None] + rare) / k for k in powers]).amin(0)
    cut = 2 * log_B.exp() * (light.reach(rare).sqrt() + h)
    truncated = bernstein(v, cut, count, delta / 4) + (v * delta / (4 * count)).sqrt()
    value = _quotient(torch.minimum((2 * v / (count * delta)).sqrt(), truncated), limit, count, delta)
    value = torch.minimum(value, light.reach((count / delta).log()).sqrt() + h)
    formula = "‖Γ_n − Γ‖ ≤ ‖⟨w̃u⟩‖/⟨w̃⟩: Chebyshev or truncated Bernstein over 1 − √(2e^D log(2/δ)/n)"
    return sizes.of(value), formula, SUBGAUSSIAN, {"D": limit.log_chi2}


def _variance(limit: CLT) -> Tensor:
    """E‖w̃u‖², the trace of the central limit covariance, (*batch, 1)."""
    trace = limit.shape.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (limit.log_chi2 + trace.log()).exp()[..., None]


def _quotient(top: Tensor, limit: CLT, n: Tensor, delta: float) -> Tensor:
    """‖⟨w̃u⟩‖ ≤ top over ⟨w̃⟩, which is held from below with probability 1 − δ/2; infinite while it is not held above zero."""
    bottom = 1 - mean_shortfall(limit.log_chi2.exp()[..., None], n, delta / 2)
    return torch.where(bottom > 0, top / bottom.clamp_min(torch.finfo(top.dtype).tiny), torch.inf)
