"""How far the law of the error at a query is from the normal law of the central limit theorem."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.attention import Head, clt
from attnlimit.bounds.hypotheses import FRESH, IID, check_finite, check_head, token_counts
from attnlimit.bounds.result import Bound
from attnlimit.errors import InputError
from attnlimit.inputs import Array, as_points
from attnlimit.measures import Measure

C = 0.4748
"""In the theorem of Berry and Esseen for independent terms of one law [shevtsova2011]."""
Z = torch.linspace(0, 7, 10_001, dtype=torch.float64)


def berry_esseen(head: Head, law: Measure, x: Array, n: object, direction: Array | None = None) -> Bound:
    """sup_z |P(√n eᵀ(Γ_n(x) − Γ(x)) ≤ τz) − Φ(z)| ≤ value, τ² = eᵀ(central limit covariance)e,

    for a direction e of the outputs (the one of largest variance unless given). Value: (*batch,) for queries x (*batch, d_query),
    or (*batch, k) for k values of n; at most 1.

    Hypotheses: independent tokens; Λ(3a) < ∞. Proof: with w̃ = e^{aᵀy − Λ(a)}, X = eᵀ(Vy − Γ) and c = τz/√n,

        eᵀ(Γ_n − Γ) ≤ c   ⟺   Σ w̃_i(X_i − c) ≤ 0,

    a sum of independent terms of mean −c, variance τ²(1 + q), q = −2zν/√n + z²(e^D − 1)/n, ν = E w̃²X/τ, and third absolute
    central moment at most (‖w̃X‖₃ + |c|(‖w̃‖₃ + 1))³. So P is Φ(z/√(1+q)) up to C(β + |z|(‖w̃‖₃ + 1)/√n)³/((1+q)^{3/2}√n), β = ‖w̃X‖₃/τ. That
    holds at each z. Between points of a grid distribution functions rise, so the largest rise of Φ is added; and beyond ±z they differ
    by at most 1 − Φ(z) more than at it, the best z. E w̃³|X|³ is an
    expectation under the law tilted by 3a: a sum for tokens, else at most (3/(eλ))³ E(e^{λX} + e^{−λX}), the best λ of some.
    """
    check_head(head, law)
    x = head.checked(x)
    head.rows(x)
    a = head.score_vector(x)
    check_finite(law, 3 * a, "Berry–Esseen", "Λ(3a)")
    limit = clt(head, law, x)
    sizes, single = token_counts(n, a)
    e = torch.linalg.eigh(limit.shape).eigenvectors[..., -1]
    if direction is not None:
        given = as_points(direction, e.shape[-1], "direction", like=e)
        if given.ndim > 1 and given.shape != e.shape:
            raise InputError(
                f"direction must be one vector, or one for each query, {tuple(e.shape)}, got {tuple(given.shape)}."
            )
        e = (given / given.norm(dim=-1, keepdim=True)).expand_as(e)
    along = (e * (limit.shape @ e[..., None])[..., 0]).sum(-1)
    tau = ((limit.log_chi2 + along.log()) / 2).clamp_min(-600).exp()
    cube = ((law.cgf(3 * a) - 3 * law.cgf(a)) / 3).exp()
    beta = cube * _third(head, law, a, e) / tau
    nu = limit.log_chi2.exp() * (e * limit.shift).sum(-1) / tau
    each = zip(*(one.reshape(-1).tolist() for one in (beta, cube + 1, nu, limit.log_chi2)), strict=True)
    value = torch.stack([_distance(sizes, *one) for one in each]).reshape(*tau.shape, len(sizes))
    value = torch.where(along[..., None] > 0, value, 0.0)
    return Bound(
        name="berry_esseen",
        value=value[..., 0] if single else value,
        kind="distance from the normal law",
        formula="sup_z |P(√n eᵀ(Γ_n − Γ) ≤ τz) − Φ(z)| ≤ sup_z 0.4748 (β + |z|(‖w̃‖₃ + 1)/√n)³/((1+q)^(3/2) √n) + |Φ(z/√(1+q)) − Φ(z)|",
        hypotheses=("Λ(3a) is finite", IID, FRESH),
        inputs={"tau": tau, "beta": beta, "nu": nu, "D": limit.log_chi2},
    )


def _distance(sizes: Tensor, beta: float, cube: float, nu: float, D: float) -> Float[Tensor, " k"]:
    """The largest bound within ±z, with what lies beyond and the largest rise of Φ between two points, for the best z."""
    root, z = sizes.double().sqrt()[:, None], Z.to(sizes.device)
    normal, sides = torch.special.ndtr(z), []
    for signed in (nu, -nu):  # of z and of −z
        variance = 1 - 2 * z * signed / root + (z / root).square() * math.expm1(min(D, 700.0))
        variance = variance.clamp_min(1e-12)
        cubed = (beta + z * cube / root) ** 3 / (variance**1.5 * root)
        sides.append(C * cubed + (torch.special.ndtr(z / variance.sqrt()) - normal).abs())
    within = torch.maximum(*sides).cummax(-1).values
    return ((within + 1 - normal).amin(-1) + normal.diff().max()).clamp_max(1).to(sizes)


def _third(head: Head, law: Measure, a: Tensor, e: Tensor) -> Tensor:
    """(E_{3a}|eᵀ(Vy − Γ)|³)^{1/3}, or a bound on it."""
    shift = (e * head.read_linear(law.tilted_mean(a))).sum(-1)
    tokens = law.population
    if tokens is not None:
        weights = (3 * a @ tokens.tokens.T + tokens.probabilities.log()).softmax(-1)
        X = e @ head.read_linear(tokens.values).T - shift[..., None]
        return (weights * X.abs() ** 3).sum(-1) ** (1 / 3)
    g, base = e @ head.V, law.cgf(3 * a)
    scale = 1 / head.read_linear(law.tilted_value_cov(3 * a)).mT.norm(dim=(-2, -1)).sqrt().clamp_min(1e-12)
    found = []
    for size in (1e-3, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0):
        step = size * scale
        ends = [3 * a + step[..., None] * g, 3 * a - step[..., None] * g]
        if all(bool(law.in_domain(end).all()) for end in ends):
            logs = [law.cgf(ends[0]) - base - step * shift, law.cgf(ends[1]) - base + step * shift]
            found.append(3 * (3 / (math.e * step)).log() + torch.logaddexp(*logs))
    return (torch.stack(found).amin(0) / 3).exp()
