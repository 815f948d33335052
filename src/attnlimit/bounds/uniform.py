"""The largest error over a ball of queries, with high probability: C(R)/√n with C exponential in R."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.bounds.concentration import bernstein
from attnlimit.bounds.hypotheses import COMPACT, IID, radii, score_norm, score_reach, token_counts
from attnlimit.bounds.light_tails import SUBGAUSSIAN, LightTails, kernel_grid, log_kernel_moment
from attnlimit.bounds.result import Bound, Inputs
from attnlimit.errors import InputError
from attnlimit.inputs import Chance, Positive
from attnlimit.measures import Measure

_FORMULAS = {
    "kernel": "sup ‖Γ_n − Γ‖ ≤ 2 R_V min(1, e^(2ρ) (1 + √(2 log 1/δ))/√n)",
    "jensen": "sup ‖Γ_n − Γ‖ ≤ 2 (R_V + ‖Vm‖) e^(ρ' + ‖A‖rη) (1 + √(2 log 2/δ))/√n, ρ' = ‖A‖r(R + ‖m‖), η ≥ ‖ȳ_n − m‖",
    "net": "sup ‖Γ_n − Γ‖ ≤ 2 R_V min(1, min_η e^(2ρ) √(2 (log 2/δ + k log(1 + 2r/η))/n) + ‖A‖Rη)",
}


def uniform(
    head: Head,
    law: Measure,
    radius: Positive,
    n: object,
    delta: Chance,
    *,
    method: str | None = None,
) -> Bound:
    """sup_{‖x‖≤r} ‖Γ_n(x) − Γ(x)‖ ≤ 2R_V e^{2ρ} (1 + √(2 log 1/δ))/√n with probability ≥ 1 − δ, ρ = ‖A‖rR.

    Value: a number, or (k,) for k values of n. `constant` is C(R) = value·√n before the cap at 2R_V. A query bias
    adds ‖A b_q‖R to ρ. Hypotheses: compact support; independent tokens. Unless `method` says which, the smaller of the
    kernel's and Jensen's bound is given at each n; sub-Gaussian tokens without bounded support have `_light`.

    Kernel proof: e^{aᵀy} = ⟨φ(a/t), φ(ty)⟩ in the Hilbert space of the kernel e^{pᵀq}; for ‖a‖ ≤ α and t² = α/R the
    two norms are at most e^{ρ/2}, ρ = αR. The vectors ξ = φ(ty) ⊗ (Vy, R_V) have norm ≤ c = √2 R_V e^{ρ/2}, so
    ‖⟨ξ⟩ − Eξ‖ ≤ c/√n + c√(2 log(1/δ)/n) (mean, then McDiarmid). With Z = E e^{aᵀy}, N = E e^{aᵀy}Vy, and Z_n, N_n
    over the tokens, Γ_n − Γ = ((N_n − N) − Γ(Z_n − Z))/Z_n reads ⟨ξ⟩ − Eξ through φ(a/t) ⊗ (I, −Γ/R_V), of norm
    ≤ √2 e^{ρ/2}, for all queries at once; and Z_n ≥ e^{−ρ}. Neither a net nor the dimension enters.

    Jensen: the same around the mean m (softmax does not see a shift), where Z_n ≥ e^{aᵀ(ȳ_n − m)} ≥ e^{−αη} by convexity, and
    ‖ȳ_n − m‖ ≤ η = (R + ‖m‖)(1 + √(2 log 2/δ))/√n but for δ/2: e^{ρ(1 + o(1))} in place of e^{2ρ} for centred tokens.

    Net (the published argument [bohbot2026token]): `fixed_query`'s e^{2ρ} at each of (1 + 2r/η)^k points, k the rank
    of A, plus η times the Lipschitz constants R_V R‖A‖ of both maps, minimised over η; C then grows as √log n.
    """
    if method is not None and method not in _FORMULAS:
        raise InputError(f"method must be 'kernel', 'jensen' or 'net', got {method!r}.")
    if method is None and law.radius < math.inf:
        return _smaller(*(uniform(head, law, radius, n, delta, method=one) for one in ("kernel", "jensen")))
    sizes = token_counts(n, head.factors.right)
    regime = _light if law.radius == math.inf else _compact
    bound, most, formula, support, inputs = regime(head, law, radius, sizes.n, delta, method)
    return Bound(
        name="uniform",
        value=sizes.of(bound.clamp_max(most)),
        kind="uniform, high probability",
        formula=formula,
        hypotheses=(support, IID, "queries in the ball ‖x‖ ≤ r, tokens among them or not"),
        inputs={**inputs, "r": radius, "delta": delta, "method": method or "jensen"},
        confidence=1 - delta,
        constant=sizes.of(bound * sizes.n.sqrt()),
        exponent=0.5,
    )


Found: TypeAlias = tuple[Tensor, Tensor, str, str, Inputs]
"""The bound without its cap, the cap, the formula, what is asked of the law's support, inputs."""


def _compact(head: Head, law: Measure, radius: float, n: Tensor, delta: float, method: str | None) -> Found:
    R, R_V = radii(head, law, "uniform")
    rho = score_reach(head, radius) * R
    if method == "jensen":
        root = (1 + math.sqrt(2 * math.log(2 / delta))) / n.sqrt()
        far = R + float(law.key_mean.norm())
        wide = 2 * (R_V + float(head.read_linear(law.mean).norm()))
        bound = wide * (root.log() + score_reach(head, radius) * far * (1 + root)).exp()
    else:
        rank = min(head.query_dim, head.factors.right.shape[-2], head.key_dim)
        slope = score_norm(head) * R * math.exp(-2 * rho)
        root = (1 + math.sqrt(2 * math.log(1 / delta))) / n.sqrt()
        if method == "net":
            root = n.new_tensor([_net(m, rank, radius, slope, delta) for m in n.tolist()])
        bound = 2 * R_V * (root.log() + 2 * rho).exp()
    most = n.new_tensor(2 * R_V)
    return bound, most, _FORMULAS[str(method)], COMPACT, {"R": R, "R_V": R_V, "rho": rho}


def _smaller(one: Bound, other: Bound) -> Bound:
    """Which is smaller does not depend on the sample, so taking it costs no δ. The words are those of the last n's."""
    last = min(one, other, key=lambda bound: float(bound.value.reshape(-1)[-1]))
    constants = [bound.constant for bound in (one, other) if bound.constant is not None]
    return replace(last, value=one.value.minimum(other.value), constant=torch.stack(constants).amin(0))


def _net(n: float, rank: int, radius: float, slope: float, delta: float) -> float:
    """min over η of √(2(log 2/δ + k log(1 + 2r/η))/n) + slope·η; any η gives a bound, so a rough minimum is one."""
    from scipy.optimize import minimize_scalar  # slow to import

    def at(log_eta: float) -> float:
        eta = math.exp(log_eta)
        points = math.log(2 / delta) + rank * math.log1p(2 * radius / eta)
        return math.sqrt(2 * points / n) + slope * eta

    ends = (math.log(radius) - 40, math.log(radius) + 5)
    return float(minimize_scalar(at, bounds=ends, method="bounded", options={"xatol": 1e-6}).fun)


def _light(head: Head, law: Measure, radius: float, n: Tensor, delta: float, method: str | None) -> Found:
    """Sub-Gaussian tokens, around their mean: with probability ≥ 1 − δ

        sup ‖Γ_n − Γ‖ ≤ √2 e^{α²/(2t²) + αη} (Bernstein(v, 2c, n, δ/3) + √(vδ/(3n))),   α = sup‖a‖.

    ξ = φ(ty) ⊗ (Vy, g) as above with g = β + κα ≥ ‖Γ‖ has v = E‖ξ‖² = E e^{t²‖y‖²}(‖Vy‖² + g²), finite for t² < 1/(2σ²), and is read through a
    vector of norm ≤ √2 e^{α²/(2t²)}. But for δ/3 all ‖y_i‖² ≤ U² = reach(log 3n/δ); tokens cut there have ‖ξ‖ ≤ c, and the cut moves E ξ by at
    most √(v P(cut)). But for another δ/3, n‖ȳ_n‖² ≤ reach(log 3/δ), as √n ȳ_n is as sub-Gaussian as y; then Z_n ≥ e^{−αη} by Jensen. t is
    the best of a grid. The cap is max‖Vy_i‖ + g. Without the cut and for the mean: E sup‖N_n − N‖ ≤ e^{α²/(2t²)} √(E e^{t²‖y‖²}‖Vy‖²/n)."""
    if method not in (None, "jensen"):
        raise InputError(
            f"For tokens without bounded support method must be 'jensen', got {method!r}: e^(2ρ) is infinite."
        )
    light = LightTails.of(head, law, "uniform")
    alpha = score_reach(head, radius)
    g = light.offset + light.growth * alpha
    U2 = light.reach((3 * n / delta).log(), "keys")
    eta = (light.reach((3 / n.new_tensor([delta])).log(), "keys") / n).sqrt()
    tried = []
    for p in kernel_grid(light):
        v = n.new_tensor(math.exp(min(log_kernel_moment(light, g, p), 700.0)))
        c = (p * U2 / 4).exp() * (light.norm**2 * U2 + g**2).sqrt()
        mean = bernstein(v, 2 * c, n, delta / 3) + (v * delta / (3 * n)).sqrt()
        tried.append((mean.log() + alpha**2 / p + alpha * eta + math.log(2) / 2).exp())
    most = light.reach((n / delta).log()).sqrt() + g
    formula = (
        "sup ‖Γ_n − Γ‖ ≤ min_t √2 e^(α²/(2t²) + αη) (Bernstein for φ(ty) ⊗ (Vy, g), cut where no token is)"
    )
    return torch.stack(tried).amin(0), most, formula, SUBGAUSSIAN, {"alpha": alpha}
