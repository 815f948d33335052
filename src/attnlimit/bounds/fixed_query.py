"""The error at a query, with high probability."""

from __future__ import annotations

import torch
from torch import Tensor

from attnlimit.attention import Head, clt
from attnlimit.bounds.concentration import bernstein, hoeffding, mean_shortfall
from attnlimit.bounds.hypotheses import COMPACT, FRESH, IID, check_delta, radii, token_counts
from attnlimit.bounds.result import Bound
from attnlimit.inputs import Array
from attnlimit.measures import Measure


def fixed_query(head: Head, law: Measure, x: Array, n: object, delta: float) -> Bound:
    """‖Γ_n(x) − Γ(x)‖ ≤ U min(1, e^{M−m} √(2 log(2/δ)/n), Bernstein) with probability ≥ 1 − δ, U = R_V + ‖Γ(x)‖,

    m and M the least and largest score aᵀy over the support, so that M − m ≤ 2ρ, ρ = ‖a‖R. Value: (*batch,) for
    queries x (*batch, d_query), or (*batch, k) for k values of n.

    Hypotheses: compact support; independent tokens. Proof: with w̃ = e^{aᵀy − Λ(a)} and u = Vy − Γ,
    Γ_n − Γ = ⟨w̃u⟩/⟨w̃⟩ over the n tokens, E w̃u = 0 and E w̃ = 1.
    Hoeffding: ‖w̃u‖ ≤ e^{M−Λ}U and ⟨w̃⟩ ≥ e^{m−Λ}; Λ cancels in the ratio, hence e^{2ρ} where bounding w̃ from both
    sides by e^{±2ρ} would give e^{4ρ}.
    Bernstein: E‖w̃u‖² is the trace of the central limit covariance, E w̃² = e^D; with δ/2 for ⟨w̃u⟩ from above and
    δ/2 for ⟨w̃⟩ from below. The smaller of the two does not depend on the sample, so taking it costs no δ.
    """
    (R, R_V), delta = radii(head, law, "fixed query"), check_delta(delta)
    x = head.checked(x)
    a = head.score_vector(x)
    sizes, single = token_counts(n, a)
    low, high = law.score_range(a)
    reach = R_V + head.read_linear(law.tilted_mean(a)).norm(dim=-1).clamp_max(R_V)
    crude = hoeffding((reach * (high - low).exp())[..., None], sizes, delta)
    fine = _bernstein(head, law, x, reach * (high - law.cgf(a)).exp(), sizes, delta)
    value = torch.minimum(torch.minimum(crude, fine), reach[..., None])
    return Bound(
        name="fixed_query",
        value=value[..., 0] if single else value,
        kind="high probability",
        formula="‖Γ_n − Γ‖ ≤ (R_V + ‖Γ‖) min(1, e^(M−m) √(2 log(2/δ)/n), Bernstein with E‖w̃u‖² and E w̃² = e^D)",
        hypotheses=(COMPACT, IID, FRESH),
        inputs={"R": R, "R_V": R_V, "rho": R * a.norm(dim=-1), "score_range": high - low, "delta": delta},
        confidence=1 - delta,
    )


def _bernstein(head: Head, law: Measure, x: Tensor, largest: Tensor, sizes: Tensor, delta: float) -> Tensor:
    """‖⟨w̃u⟩‖/⟨w̃⟩ with each side held with probability 1 − δ/2; infinite while ⟨w̃⟩ is not held above zero."""
    limit = clt(head, law, x)
    trace = limit.shape.diagonal(dim1=-2, dim2=-1).sum(-1)
    variance = (limit.log_chi2 + trace.log()).exp()
    top = bernstein(variance[..., None], largest[..., None], sizes, delta / 2)
    bottom = 1 - mean_shortfall(limit.log_chi2.exp()[..., None], sizes, delta / 2)
    return torch.where(bottom > 0, top / bottom.clamp_min(torch.finfo(x.dtype).tiny), torch.inf)
