"""How far the effective number of keys that n tokens show is from that of their law."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.bounds.hypotheses import FRESH, IID, check_finite, check_head, log_chi2, token_counts
from attnlimit.bounds.result import Bound
from attnlimit.inputs import Array, Chance
from attnlimit.measures import Measure


def observed_chi2(head: Head, law: Measure, x: Array, n: object, delta: Chance) -> Bound:
    """|log(n Σp²) − D(a)| ≤ value with probability ≥ 1 − δ, p the attention weights of n tokens, D = Λ(2a) − 2Λ(a).

    So the effective keys 1/Σp² lie between n e^{−D − value} and n e^{−D + value}. Value: (*batch,) for queries x (*batch, d_query), or
    (*batch, k) for k values of n. n Σp² is an average too, with n e^{−D(2a)} effective tokens: many more are needed than for Γ_n.

    Hypotheses: independent tokens; Λ(4a) < ∞. Proof: n Σp² = ⟨w̃²⟩/⟨w̃⟩² with E w̃ = 1, E w̃² = e^D, E w̃⁴ = e^{2D + D(2a)}. But for δ/4 each,
    by `mean_shortfall` from below and Chebyshev from above, with ℓ = log(4/δ),

        1 − √(2e^D ℓ/n) ≤ ⟨w̃⟩ ≤ 1 + √(4(e^D − 1)/(nδ)),   1 − √(2e^{D(2a)} ℓ/n) ≤ ⟨w̃²⟩e^{−D} ≤ 1 + √(4(e^{D(2a)} − 1)/(nδ)).

    And 1/n ≤ Σp² ≤ 1 in any case.
    """
    check_head(head, law)
    a = head.score_vector(head.checked(x))
    check_finite(law, 4 * a, "observed χ²", "Λ(4a)")
    sizes, single = token_counts(n, a)
    D, D2 = log_chi2(law, a)[..., None], log_chi2(law, 2 * a)[..., None]
    level = math.log(4 / delta)

    def below(log_moment: torch.Tensor) -> torch.Tensor:
        """−log of how far an average falls short; infinite where it is not held above zero."""
        short = (2 * level / sizes * log_moment.exp()).sqrt()
        return torch.where(short < 1, -(-short.clamp_max(1 - 1e-9)).log1p(), torch.inf)

    def above(log_moment: torch.Tensor) -> torch.Tensor:
        return (4 / (sizes * delta) * log_moment.expm1()).sqrt().log1p()

    up = torch.minimum(above(D2) + 2 * below(D), sizes.log() - D)
    down = torch.minimum(below(D2) + 2 * above(D), D)
    value = torch.maximum(up, down).clamp_min(0)
    return Bound(
        name="observed_chi2",
        value=value[..., 0] if single else value,
        kind="log of the effective keys, high probability",
        formula="|log(n Σp²) − D| ≤ shortfall and excess of ⟨w̃⟩ and ⟨w̃²⟩, with n e^(−D) and n e^(−D(2a)) effective tokens",
        hypotheses=("Λ(4a) is finite", IID, FRESH),
        inputs={"D": D[..., 0], "D(2a)": D2[..., 0], "delta": delta},
        confidence=1 - delta,
    )


def effective_interval(
    weights: Float[Tensor, "*m n"], count: Float[Tensor, "*m"]
) -> tuple[Float[Tensor, "*m"], Float[Tensor, "*m"]]:
    """Where the effective keys n e^{−D} of the law behind n keys lie, about 95 times of 100, by what their attention weights p show (zeros count
    as no key): from e^{−3.92 σ} to e^{1.96 σ} times 1/Σp², σ² = Σ (p²/Σp² − 2p + 1/n)², within 1 and n.

    By the central limit theorem for ⟨w⟩ and ⟨w²⟩ in log(n Σp²) = log⟨w²⟩ − 2 log⟨w⟩. Averages are skew, for keys too heavy to have been seen: so
    the lower end is twice as far, and 1 where fewer than 100 keys carry Σp² ((Σp²)²/Σp⁴). Of Gaussian scores of deviation 0.5 to 2 and 500
    to 16,000 keys 89 % to 98 % of the intervals covered. `observed_chi2` holds at every n, but needs the law.
    """
    p = weights.double()
    square = p.square().sum(-1, keepdim=True)
    part = (p.square() / square - 2 * p + 1 / count[..., None]).masked_fill(p == 0, 0.0)
    reach, middle = (1.96 * part.square().sum(-1).sqrt()).exp(), 1 / square[..., 0]
    carried = square[..., 0].square() >= 100 * p.pow(4).sum(-1)
    return torch.where(carried, middle / reach**2, 1.0).clamp_min(1.0), torch.minimum(
        middle * reach, count.double()
    )
