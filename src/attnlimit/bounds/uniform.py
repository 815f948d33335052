"""The largest error over a ball of queries, with high probability: C(R)/√n with C exponential in R."""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from attnlimit.attention import Head
from attnlimit.bounds.hypotheses import (
    COMPACT,
    IID,
    check_delta,
    radii,
    score_norm,
    score_reach,
    token_counts,
)
from attnlimit.bounds.result import Bound
from attnlimit.errors import InputError
from attnlimit.inputs import as_positive
from attnlimit.measures import Measure

_FORMULAS = {
    "kernel": "sup ‖Γ_n − Γ‖ ≤ 2 R_V min(1, e^(2ρ) (1 + √(2 log 1/δ))/√n)",
    "net": "sup ‖Γ_n − Γ‖ ≤ 2 R_V min(1, min_η e^(2ρ) √(2 (log 2/δ + k log(1 + 2r/η))/n) + ‖A‖Rη)",
}


def uniform(
    head: Head,
    law: Measure,
    radius: float,
    n: object,
    delta: float,
    *,
    method: str = "kernel",
) -> Bound:
    """sup_{‖x‖≤r} ‖Γ_n(x) − Γ(x)‖ ≤ 2R_V e^{2ρ} (1 + √(2 log 1/δ))/√n with probability ≥ 1 − δ, ρ = ‖A‖rR.

    Value: a number, or (k,) for k values of n. `constant` is C(R) = value·√n before the cap at 2R_V. A query bias
    adds ‖A b_q‖R to ρ. Hypotheses: compact support; independent tokens.

    Kernel proof: e^{aᵀy} = ⟨φ(a/t), φ(ty)⟩ in the Hilbert space of the kernel e^{pᵀq}; for ‖a‖ ≤ α and t² = α/R the
    two norms are at most e^{ρ/2}, ρ = αR. The vectors ξ = φ(ty) ⊗ (Vy, R_V) have norm ≤ c = √2 R_V e^{ρ/2}, so
    ‖⟨ξ⟩ − Eξ‖ ≤ c/√n + c√(2 log(1/δ)/n) (mean, then McDiarmid). With Z = E e^{aᵀy}, N = E e^{aᵀy}Vy, and Z_n, N_n
    over the tokens, Γ_n − Γ = ((N_n − N) − Γ(Z_n − Z))/Z_n reads ⟨ξ⟩ − Eξ through φ(a/t) ⊗ (I, −Γ/R_V), of norm
    ≤ √2 e^{ρ/2}, for all queries at once; and Z_n ≥ e^{−ρ}. Neither a net nor the dimension enters.

    Net (the published argument [bohbot2026token]): `fixed_query`'s e^{2ρ} at each of (1 + 2r/η)^k points, k the rank
    of A, plus η times the Lipschitz constants R_V R‖A‖ of both maps, minimised over η; C then grows as √log n.
    """
    if method not in _FORMULAS:
        raise InputError(f"method must be 'kernel' or 'net', got {method!r}.")
    (R, R_V), delta = radii(head, law, "uniform"), check_delta(delta)
    radius = as_positive(radius, "radius")
    rho = score_reach(head, radius) * R
    sizes, single = token_counts(n, head.factors.right)
    if method == "kernel":
        root = (1 + math.sqrt(2 * math.log(1 / delta))) / sizes.sqrt()
    else:
        rank = min(head.query_dim, head.factors.right.shape[-2], head.key_dim)
        slope = score_norm(head) * R * math.exp(-2 * rho)
        root = sizes.new_tensor([_net(m, rank, radius, slope, delta) for m in sizes.tolist()])
    bound = 2 * R_V * (root.log() + 2 * rho).exp()
    value, constant = bound.clamp_max(2 * R_V), bound * sizes.sqrt()
    return Bound(
        name="uniform",
        value=value[0] if single else value,
        kind="uniform, high probability",
        formula=_FORMULAS[method],
        hypotheses=(COMPACT, IID, "queries in the ball ‖x‖ ≤ r, tokens among them or not"),
        inputs={"R": R, "R_V": R_V, "rho": rho, "r": radius, "delta": delta, "method": method},
        confidence=1 - delta,
        constant=constant[0] if single else constant,
        exponent=0.5,
    )


def _net(n: float, rank: int, radius: float, slope: float, delta: float) -> float:
    """min over η of √(2(log 2/δ + k log(1 + 2r/η))/n) + slope·η; any η gives a bound, so a rough minimum is one."""

    def at(log_eta: float) -> float:
        eta = math.exp(log_eta)
        points = math.log(2 / delta) + rank * math.log1p(2 * radius / eta)
        return math.sqrt(2 * points / n) + slope * eta

    ends = (math.log(radius) - 40, math.log(radius) + 5)
    return float(minimize_scalar(at, bounds=ends, method="bounded", options={"xatol": 1e-6}).fun)
