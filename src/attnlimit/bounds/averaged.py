"""The error averaged over random queries: a rate set by the horizon."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.bounds.hypotheses import (
    COMPACT,
    FRESH,
    IID,
    check_known,
    log_chi2,
    radii,
    score_reach,
    token_counts,
)
from attnlimit.bounds.light_tails import SUBGAUSSIAN, LightTails, QuadraticMoment
from attnlimit.bounds.mean_square import light_square
from attnlimit.bounds.result import Bound, Inputs
from attnlimit.errors import HypothesisFailed, InputError
from attnlimit.inputs import Array, Chance, Seeded, as_count, as_generator
from attnlimit.measures import Measure


def averaged(
    head: Head,
    law: Measure,
    n: object,
    queries: Array | Measure | None = None,
    *,
    method: str | None = None,
    generator: Seeded | None = None,
    samples: int = 4096,
    delta: Chance = 0.01,
) -> Bound:
    """E_x E‖Γ_n(x) − Γ(x)‖ ≤ 2R_V E_x min(1, e^{D(Ax)/2}/√n),   D(a) = Λ(2a) − 2Λ(a).

    The query x is independent of the tokens, with the tokens' law unless `queries` is another measure, or an array
    of queries to average over. Value: a number, or (k,) for k values of n. `method`, chosen by what is given:

    - "exact": the average over the given queries, or over the tokens when the query's law is an Empirical measure;
    - "sampled" (with `generator`): `samples` queries are drawn, and the value is an upper confidence limit of the
      average, which fails with probability ≤ delta (Maurer and Pontil's empirical Bernstein [maurer2009]);
    - "closed form": min over p ∈ (0, 1] of 2R_V n^{−p/2} E e^{pD/2}, as min(1, z) ≤ z^p, with the bounds on D and on
      the expectation of `light_tails`. H is the horizon with variance proxies for covariances (the same for
      Gaussians, spheres, balls, boxes and signs); the constant is R_V Π(1 − λ_i)^{−1/2} at H < 1: exponential in the dimension, where "exact" and "sampled" are not.
      The rate is n^{−1/2} for H < 1; for H ≥ 1 it is n^{−1/(2H²)} up to a power of log n.

    Hypotheses: compact support of the tokens; independence; in closed form, sub-Gaussian queries.

    Sub-Gaussian tokens without bounded support (see `_light`): "exact" averages the roots of `mean_square`'s bound, and the closed form has
    reach(log n)^{1/2} + β + 2κ‖a‖ in place of 2R_V, so one more √log n.
    """
    source = law if queries is None else queries
    if law.radius == math.inf:
        return _light(head, law, n, source, method or _choose(source, generator))
    R, R_V = radii(head, law, "averaged")
    method = method or _choose(source, generator)
    sizes, single = token_counts(n, head.factors.right)
    extra: Inputs = {"R": R, "R_V": R_V, "method": method}
    confidence, constant, exponent = None, None, None
    if method == "exact":
        x, weights = _given(head, source)
        share = weights @ _shares(head, law, x, sizes)
        extra |= {"queries": len(x)}
    elif method == "sampled":
        confidence = 1 - delta
        share = _sampled(head, law, source, sizes, generator, as_count(samples, "samples"), delta)
        extra |= {"queries": samples, "delta": delta}
    elif method == "closed form":
        moment = QuadraticMoment.of(head, _measure(source, method), law.log_chi2_slope)
        exponent = moment.exponent
        share = sizes.new_tensor([moment.best(m) for m in sizes.tolist()])
        constant = 2 * R_V * share * sizes**exponent
        extra |= {"horizon": moment.horizon}
    else:
        raise InputError(f"method must be 'exact', 'sampled' or 'closed form', got {method!r}.")
    value = 2 * R_V * share.clamp_max(1)
    return Bound(
        name="averaged",
        value=value[0] if single else value,
        kind="mean, query-averaged" + (" (sampled queries)" if method == "sampled" else ""),
        formula="E_x E‖Γ_n − Γ‖ ≤ 2 R_V E_x min(1, e^(D/2)/√n)"
        + (" ≤ 2 R_V min_p n^(−p/2) E e^(pD/2)" if method == "closed form" else ""),
        hypotheses=(COMPACT, IID, FRESH, *(["sub-Gaussian queries"] if method == "closed form" else [])),
        inputs=extra,
        confidence=confidence,
        constant=constant if constant is None or not single else constant[0],
        exponent=exponent,
    )


def _light(head: Head, law: Measure, n: object, source: Array | Measure, method: str) -> Bound:
    """With values around their mean, ξ = V(y − m), M = max‖ξ_i‖ and Γ − Vm = E_a ξ,

        Γ_n − Γ = (Γ_n − Vm)(1 − ⟨w̃⟩) + (⟨w̃ξ⟩ − E w̃ξ),   ‖Γ_n − Vm‖ ≤ M,

    so E‖Γ_n − Γ‖ ≤ ((E M²)^{1/2} + (E_{2a}‖ξ‖²)^{1/2}) e^{D/2}/√n (Cauchy–Schwarz), and ≤ (E M²)^{1/2} + ‖Γ − Vm‖. Both are at most
    (reach(log n)^{1/2} + β + 2κ‖a‖) min(1, e^{D/2}/√n), whose mean over queries is `QuadraticMoment.best`."""
    light = LightTails.of(head, law, "averaged")
    sizes, single = token_counts(n, head.factors.right)
    constant, exponent, extra = None, None, dict[str, float]()
    if method == "exact":
        x, weights = _given(head, source)
        value = weights @ light_square(light, head, law, x, sizes).sqrt()
        extra = {"queries": len(x)}
    elif method == "closed form":
        moment = QuadraticMoment.of(head, _measure(source, method), law.log_chi2_slope)
        reach = light.reach(sizes.log()).sqrt() + light.offset
        each = zip(sizes.tolist(), reach.tolist(), strict=True)
        value = sizes.new_tensor([moment.best(m, size, 2 * light.growth) for m, size in each])
        exponent, extra = moment.exponent, {"horizon": moment.horizon}
        constant = value * sizes**exponent
    else:
        raise InputError(
            f"For tokens without bounded support method must be 'exact' or 'closed form', got {method!r}: the bound at a query has no "
            "largest value, which sampled queries would need."
        )
    return Bound(
        name="averaged",
        value=value[0] if single else value,
        kind="mean, query-averaged",
        formula="E_x E‖Γ_n − Γ‖ ≤ E_x (reach(log n)^(1/2) + β + 2κ‖a‖) min(1, e^(D/2)/√n)"
        if method == "closed form"
        else "E_x E‖Γ_n − Γ‖ ≤ E_x (bound on E‖Γ_n − Γ‖²)^(1/2)",
        hypotheses=(SUBGAUSSIAN, IID, FRESH, *(["sub-Gaussian queries"] if method == "closed form" else [])),
        inputs={"method": method, **extra},
        constant=constant if constant is None or not single else constant[0],
        exponent=exponent,
    )


def _choose(source: Array | Measure, generator: Seeded | None) -> str:
    if not isinstance(source, Measure) or (source.population is not None and generator is None):
        return "exact"
    return "closed form" if generator is None else "sampled"


def _shares(head: Head, law: Measure, x: Tensor, sizes: Tensor) -> Float[Tensor, "m k"]:
    """min(1, e^{D/2}/√n) for each query and n."""
    D = log_chi2(law, head.score_vector(x.reshape(-1, head.query_dim)))
    return ((D[:, None] - sizes.log()) / 2).clamp_max(0).exp()


def _given(head: Head, source: Array | Measure) -> tuple[Float[Tensor, "m d"], Float[Tensor, " m"]]:
    """The queries to average over, and their weights."""
    if isinstance(source, Measure):
        if source.population is not None:
            return head.checked(source.population.tokens), source.population.probabilities
        raise InputError(
            f"method='exact' averages over given queries or tokens, but the queries follow {source!r}. "
            "Use method='sampled' with a generator, or 'closed form'."
        )
    x = head.checked(source)
    if x.numel() == 0:
        raise InputError("queries are empty: there is nothing to average over.")
    x = x.reshape(-1, head.query_dim)
    return x, x.new_full((len(x),), 1 / len(x))


def _sampled(
    head: Head,
    law: Measure,
    source: Array | Measure,
    sizes: Tensor,
    generator: Seeded | None,
    samples: int,
    delta: float,
) -> Float[Tensor, " k"]:
    """mean + √(2 var ℓ/m) + 7bℓ/(3(m − 1)), ℓ = log(2k/δ) over the k values of n, b the largest share possible."""
    source = _measure(source, "sampled")
    if generator is None:
        raise InputError(
            "method='sampled' draws queries: pass generator=, a torch.Generator or a whole number."
        )
    if samples < 2:
        raise InputError(f"samples must be at least 2 for a variance, got {samples}.")
    x = source.sample(samples, generator=as_generator(generator, source.device)).tokens
    shares = _shares(head, law, head.checked(x), sizes)
    largest = torch.ones_like(sizes)
    if source.radius < math.inf:
        worst = law.log_chi2_slope * score_reach(head, source.radius) ** 2
        largest = ((worst - sizes.log()) / 2).clamp_max(0).exp()
    log_term = math.log(2 * len(sizes) / delta)
    spread = (2 * shares.var(0) * log_term / samples).sqrt()
    return shares.mean(0) + spread + 7 * largest * log_term / (3 * (samples - 1))


def _measure(source: Array | Measure, method: str) -> Measure:
    if not isinstance(source, Measure):
        raise InputError(f"method='{method}' needs the law of the queries, got an array: use method='exact'.")
    if method == "sampled":
        return source
    check_known(source, "averaged")
    if source.radius == math.inf and source.variance_proxy is None:
        raise HypothesisFailed(
            f"The averaged bound in closed form needs sub-Gaussian queries, but {source!r} has no variance proxy: "
            "large queries are too frequent for E e^(pD/2) to be finite. Use method='sampled' with a generator."
        )
    return source
