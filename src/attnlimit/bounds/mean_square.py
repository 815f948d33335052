"""The mean square error at a query, for every n."""

from __future__ import annotations

from attnlimit.attention import Head
from attnlimit.bounds.hypotheses import COMPACT, FRESH, IID, log_chi2, radii, token_counts
from attnlimit.bounds.result import Bound
from attnlimit.inputs import Array
from attnlimit.measures import Measure


def mean_square(head: Head, law: Measure, x: Array, n: object) -> Bound:
    """E‖Γ_n(x) − Γ(x)‖² ≤ 4R_V² min(1, e^{D(Ax)}/n),   D(a) = Λ(2a) − 2Λ(a)     [agapiou2017importance, Thm 2.1].

    Value: (*batch,) for queries x (*batch, d_query), or (*batch, k) for k values of n.

    Hypotheses: compact support; independent tokens. Proof: with w̃ = e^{aᵀy − Λ(a)} (mean one), v = Vy and ⟨·⟩ the
    mean over the n tokens, Γ_n − Γ = Γ_n(1 − ⟨w̃⟩) + (⟨w̃v⟩ − Γ). As ‖Γ_n‖ ≤ R_V, the squares of the two terms have
    expectation at most R_V² e^D/n each, and ‖s + t‖² ≤ 2‖s‖² + 2‖t‖².

    >>> from attnlimit import Sphere
    >>> mean_square(Head([[2.0]]), Sphere(1), [0.0], n=100)  # plain averages of ±1, whose mean square is 1/n
    Bound(mean_square: mean square ≤ 0.04)
    """
    R, R_V = radii(head, law, "mean square")
    a = head.score_vector(head.checked(x))
    D = log_chi2(law, a)
    sizes, single = token_counts(n, a)
    value = 4 * R_V**2 * (D[..., None] - sizes.log()).clamp_max(0).exp()
    return Bound(
        name="mean_square",
        value=value[..., 0] if single else value,
        kind="mean square",
        formula="E‖Γ_n − Γ‖² ≤ 4 R_V² min(1, e^D/n)",
        hypotheses=(COMPACT, IID, FRESH),
        inputs={"R": R, "R_V": R_V, "D": D},
    )
