"""The mean square error at a query, for every n."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnlimit.attention import Head, clt
from attnlimit.bounds.hypotheses import COMPACT, FRESH, IID, log_chi2, radii, token_counts
from attnlimit.bounds.light_tails import SUBGAUSSIAN, LightTails
from attnlimit.bounds.result import Bound, Inputs
from attnlimit.inputs import Array
from attnlimit.measures import Measure


def mean_square(head: Head, law: Measure, x: Array, n: object) -> Bound:
    """E‖Γ_n(x) − Γ(x)‖² ≤ 4R_V² min(1, e^{D(Ax)}/n),   D(a) = Λ(2a) − 2Λ(a)     [agapiou2017importance, Thm 2.1].

    Value: (*batch,) for queries x (*batch, d_query), or (*batch, k) for k values of n.

    Hypotheses: compact support; independent tokens. Proof: with w̃ = e^{aᵀy − Λ(a)} (mean one), v = Vy and ⟨·⟩ the
    mean over the n tokens, Γ_n − Γ = Γ_n(1 − ⟨w̃⟩) + (⟨w̃v⟩ − Γ). As ‖Γ_n‖ ≤ R_V, the squares of the two terms have
    expectation at most R_V² e^D/n each, and ‖s + t‖² ≤ 2‖s‖² + 2‖t‖².

    Sub-Gaussian tokens without bounded support: the least over θ ∈ (0, 1) of e^D tr/(n(1 − θ)²) + E[M²; ⟨w̃⟩ < 1 − θ], with e^D tr the trace of
    the central limit covariance and M the largest ‖Vy_i − Γ‖ (see `light_square`).

    >>> from attnlimit import Sphere
    >>> mean_square(Head([[2.0]]), Sphere(1), [0.0], n=100)  # plain averages of ±1, whose mean square is 1/n
    Bound(mean_square: mean square ≤ 0.04)
    """
    x = head.checked(x)
    a, sizes = head.score_vector(x), token_counts(n, x)
    inputs: Inputs = {}
    if law.radius == math.inf:
        value = light_square(LightTails.of(head, law, "mean square"), head, law, x, sizes.n)
        formula = "E‖Γ_n − Γ‖² ≤ min_θ e^D tr/(n(1−θ)²) + E(max‖Vy − Γ‖²; ⟨w̃⟩ < 1 − θ)"
        support, D = SUBGAUSSIAN, log_chi2(law, a)
    else:
        R, R_V = radii(head, law, "mean square")
        D = log_chi2(law, a)
        value = 4 * R_V**2 * (D[..., None] - sizes.n.log()).clamp_max(0).exp()
        formula, support = "E‖Γ_n − Γ‖² ≤ 4 R_V² min(1, e^D/n)", COMPACT
        inputs = {"R": R, "R_V": R_V}
    why, inputs = (support, IID, FRESH), inputs | {"D": D}
    return Bound("mean_square", sizes.of(value), "mean square", formula, why, inputs)


def light_square(light: LightTails, head: Head, law: Measure, x: Tensor, sizes: Tensor) -> Tensor:
    """(*batch, k). Γ_n − Γ = ⟨w̃u⟩/⟨w̃⟩ with u = Vy − Γ: where ⟨w̃⟩ ≥ 1 − θ its square has expectation at most E‖w̃u‖²/(n(1 − θ)²),
    and E‖w̃u‖² is the trace of the central limit covariance. Elsewhere, an event B of probability P ≤ e^{−nθ²e^{−D}/2}
    (`mean_shortfall`), ‖Γ_n − Γ‖ ≤ max‖u_i‖ ≤ M + h with M = max‖V(y_i − m)‖ and h = ‖Γ − Vm‖; by Jensen under the law given B
    E[M²; B] ≤ P·(2/p) log(n E e^{p‖V(y−m)‖²/2}/P), which rises with P ≤ 1/e; and always E M² ≤ reach(log n). θ and p are chosen
    from a grid."""
    limit, a = clt(head, law, x), head.score_vector(x)
    trace = limit.shape.diagonal(dim1=-2, dim2=-1).sum(-1)
    h = head.read_linear(law.tilted_mean(a) - law.mean).norm(dim=-1)[..., None, None]
    theta = torch.logspace(-3, -0.01, 25, dtype=x.dtype, device=x.device)
    log_fail = -(0.5 * theta.square() * sizes[:, None]) * (-limit.log_chi2).exp()[..., None, None]
    always = light.reach(sizes.log())[:, None]
    rare = log_fail.exp() * light.reach(sizes.log()[:, None] - log_fail)
    far = torch.where(log_fail <= -1, rare, always)
    rest = (far.sqrt() + h * (log_fail / 2).exp()).square()
    main = (limit.log_chi2 + trace.log())[..., None, None] - sizes.log()[:, None] - 2 * (1 - theta).log()
    return torch.minimum((main.exp() + rest).amin(-1), (always.sqrt() + h)[..., 0].square())
