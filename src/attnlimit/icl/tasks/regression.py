"""In-context linear regression."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.icl.tasks.base import (
    Floor,
    InContextTask,
    Matrices,
    Prompts,
    Tilts,
    Vectors,
    as_cov,
    as_vector,
    check_sizes,
    normal,
)
from attnlimit.inputs import Array, Count, Finite, as_count, as_positive
from attnlimit.measures import Gaussian

FLOOR_DRAWS, FLOOR_SEED = 20_000, 2512_11784


class LinearRegression(InContextTask):
    """Tokens z = (x, y) with x ~ N(0, Σ) and y = wᵀx + ε, ε ~ N(0, noise); query (x_q, 0) with x_q ~ N(0, Σ_q);
    target wᵀx_q, without noise, so that a perfect prediction has risk 0. Task vector w ~ N(0, P).

    Given w a token is Gaussian with covariance Γ_w = [[Σ, Σw], [wᵀΣ, wᵀΣw + noise]], so the infinite-prompt
    model is linear: prediction = last coordinate of V Γ_w U (x_q, 0) [boursier2026softmax].

    `cov` is Σ: a number, a vector (diagonal) or a matrix such as `ar1(dim, 0.5)`; I unless given. `query_cov` is Σ_q
    (Σ unless given), `vector_cov` is P (I/d unless given), `noise` a variance.

    >>> LinearRegression(5)
    LinearRegression(d = 5, noise variance 0.1)
    """

    loss = "squared"

    def __init__(
        self,
        dim: Count | None = None,
        cov: Array = 1.0,
        *,
        noise: Finite = 0.1,
        vector_cov: Array | None = None,
        query_cov: Array | None = None,
    ) -> None:
        self.cov = as_cov(cov, dim, "cov")
        self.dim = len(self.cov)
        self.token_dim = self.dim + 1
        if noise < 0:
            raise InputError(f"noise is a variance, a finite number of at least 0, got {noise!r}.")
        self.noise = as_positive(noise, "noise") if noise > 0 else 0.0
        self.vector_cov = as_cov(1 / self.dim if vector_cov is None else vector_cov, self.dim, "vector_cov")
        self.query_cov = self.cov if query_cov is None else as_cov(query_cov, self.dim, "query_cov")

    def __repr__(self) -> str:
        return f"LinearRegression(d = {self.dim}, noise variance {self.noise:g})"

    @cached_property
    def _roots(self) -> tuple[Tensor, Tensor, Tensor]:
        """Lower Cholesky factors of Σ, Σ_q and P."""
        prompt, query, vector = (
            torch.linalg.cholesky(cov) for cov in (self.cov, self.query_cov, self.vector_cov)
        )
        return prompt, query, vector

    def _draw(self, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype) -> Prompts:
        _, query, vector = (root.to(generator.device, dtype) for root in self._roots)
        w = normal(batch, self.dim, generator=generator, dtype=dtype) @ vector.T
        x = normal(batch, self.dim, generator=generator, dtype=dtype) @ query.T
        white = normal(batch, length, self.token_dim, generator=generator, dtype=dtype)
        tokens = white @ self.prompt_root(w).mT
        return Prompts(tokens, torch.nn.functional.pad(x, (0, 1)), (w * x).sum(-1), w)

    def prompt_root(self, vectors: Float[Tensor, "*B d"]) -> Float[Tensor, "*B D D"]:
        """Lower triangular F with FFᵀ = Γ_w, so that F times white noise is a token: [[root Σ, 0], [wᵀ root Σ, √noise]]."""
        check_sizes(vectors, vectors=(vectors, self.dim))
        prompt = self._roots[0].to(vectors)
        F = vectors.new_zeros(*vectors.shape[:-1], self.token_dim, self.token_dim)
        F[..., :-1, :-1] = prompt
        F[..., -1, :-1] = vectors @ prompt
        F[..., -1, -1] = vectors.new_tensor(math.sqrt(self.noise))
        return F

    def prompt_cov(self, vectors: Float[Tensor, "*B d"]) -> Float[Tensor, "*B D D"]:
        """Γ_w = [[Σ, Σw], [wᵀΣ, wᵀΣw + noise]]."""
        check_sizes(vectors, vectors=(vectors, self.dim))
        cov = self.cov.to(vectors)
        side = vectors @ cov
        corner = (vectors * side).sum(-1) + self.noise
        top = torch.cat([cov.expand(*vectors.shape[:-1], -1, -1), side[..., None]], -1)
        bottom = torch.cat([side, corner[..., None]], -1)[..., None, :]
        return torch.cat([top, bottom], -2)

    def prompt_law(self, vector: Tensor) -> Gaussian:
        return Gaussian(cov=self.prompt_cov(as_vector(vector, self.dim)))

    def tilted_mean(self, vectors: Vectors, a: Tilts) -> Tilts:
        check_sizes(vectors, a=(a, self.token_dim))
        return (self.prompt_cov(vectors) @ a[..., None])[..., 0]

    def exact_risk(self, U: Matrices, V: Matrices) -> Float[Tensor, "*models"]:
        """½ E_w (ρ_w − w)ᵀΣ_q(ρ_w − w), where the prediction is ρ_wᵀx_q. With v the last row of V and U₁, u₂ᵀ the upper and
        the last rows of U's first d columns,

            ρ_w − w = c + M w + v₂u₂(wᵀΣw − tr ΣP),   M = v₂U₁ᵀΣ + u₂v₁ᵀΣ − I,   c = U₁ᵀΣv₁ + v₂u₂(noise + tr ΣP),

        and the three terms are uncorrelated for Gaussian w: ½[cᵀΣ_q c + tr(MᵀΣ_q M P) + 2 tr((ΣP)²) v₂²u₂ᵀΣ_q u₂].
        """
        check_sizes(U, U=(U, self.token_dim), V=(V, self.token_dim))
        cov, query, P = (c.to(U) for c in (self.cov, self.query_cov, self.vector_cov))
        v1, v2 = V[..., -1, :-1], V[..., -1, -1]
        U1, u2 = U[..., :-1, :-1], U[..., -1, :-1]
        side = v1 @ cov
        product = cov @ P
        c = (side[..., None, :] @ U1)[..., 0, :] + (v2 * (self.noise + product.trace()))[..., None] * u2
        M = v2[..., None, None] * (U1.mT @ cov) + u2[..., :, None] * side[..., None, :]
        M = M - torch.eye(self.dim).to(U)
        constant = ((c @ query) * c).sum(-1)
        linear = ((query @ M @ P) * M).sum((-2, -1))
        quadratic = 2 * (product @ product).trace() * v2.square() * ((u2 @ query) * u2).sum(-1)
        risk = (constant + linear + quadratic) / 2
        if not bool(risk.isfinite().all()):
            raise InputError("The risk leaves the range of floating point: U or V is too large.")
        return risk

    def bayes(self, prompts: Prompts) -> Float[Tensor, " B"]:
        """Ridge regression with the true variances, the Bayes prediction: x_qᵀP Xᵀ(X P Xᵀ + noise·I)⁻¹ y."""
        D = self.token_dim
        check_sizes(prompts.query, tokens=(prompts.tokens, D), query=(prompts.query, D))
        x, y = prompts.tokens[..., :-1], prompts.tokens[..., -1]
        if self.noise == 0:  # fewer tokens than dimensions: the least P⁻¹-norm among all that fit
            root = self._roots[2].to(x)
            w = (root @ torch.linalg.pinv(x @ root) @ y[..., None])[..., 0]
        else:
            gram = x.mT @ x + self.noise * torch.linalg.inv(self.vector_cov).to(x)
            w = torch.linalg.solve(gram, (x.mT @ y[..., None])[..., 0])
        return (w * prompts.query[..., :-1]).sum(-1)

    def floor(self, length: int) -> Floor:
        """½ E_X tr(Σ_q (P⁻¹ + XᵀX/noise)⁻¹), the risk of ridge regression with the true variances (Bayes)."""
        length = as_count(length, "length")
        kind = f"Bayes risk (ridge), Monte Carlo over {FLOOR_DRAWS:,} designs"
        if self.noise == 0 and length >= self.dim:
            return Floor(0.0, 0.0, "Bayes risk (ridge), exact: no noise and at least d tokens")
        rng = np.random.default_rng(FLOOR_SEED)
        prompt, query, vector = self._roots
        white = torch.as_tensor(_white_factor(length, self.dim, FLOOR_DRAWS, rng))
        x = white @ prompt.T @ vector  # XᵀX in the coordinates where w is white
        read = vector.T @ query
        if self.noise > 0:
            gram = x.mT @ x / self.noise + torch.eye(self.dim, dtype=x.dtype)
            rest = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), read, upper=False)
            risks = rest.square().sum((-2, -1)) / 2
        else:
            kept = torch.linalg.qr(x.mT).Q
            risks = (read - kept @ (kept.mT @ read)).square().sum((-2, -1)) / 2
        return Floor(float(risks.mean()), float(risks.std()) / FLOOR_DRAWS**0.5, kind)


def _white_factor(length: int, dim: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Matrices T with the law of TᵀT that of XᵀX, X of `length` white rows: X itself when it is short, else
    Bartlett's triangular factor, whose cost does not depend on the length."""
    if length < dim:
        return rng.standard_normal((draws, length, dim))
    factor = np.triu(rng.standard_normal((draws, dim, dim)), 1)
    index = np.arange(dim)
    factor[:, index, index] = np.sqrt(rng.chisquare(length - index, (draws, dim)))
    return factor
