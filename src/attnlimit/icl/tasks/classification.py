"""In-context classification of two Gaussian classes."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad, softplus

from attnlimit.icl.tasks.base import (
    Floor,
    InContextTask,
    LossKind,
    Prompts,
    Tilts,
    Vectors,
    as_cov,
    as_vector,
    check_sizes,
    normal,
)
from attnlimit.inputs import Array, Count, as_count
from attnlimit.measures import Gaussian, Mixture
from attnlimit.numerics.chi2 import weighted_chi2

SPREAD_NODES, GAUSS_NODES = 400, 401


class Classification(InContextTask):
    """Tokens z = (x, y) with y = ±1 equally likely and x ~ N(y m, Σ); query (x_q, 0), target its class y_q. Task vector
    m ~ N(0, P), so that the linear discriminant is P(y = 1 | x) = σ(2 mᵀΣ⁻¹x).

    Given m the prompt law is a mixture of two Gaussians, and the infinite-prompt head is affine plus sigmoid: with
    a = (a₁, a₂) = U (x_q, 0),

        ∇Λ(a) = (Σa₁, 0) + tanh(mᵀa₁ + a₂) (m, 1),   tanh t = 2σ(2t) − 1     [gabet2026mixtures].

    `cov` is Σ and `vector_cov` is P, I unless given: numbers, diagonals or matrices. `loss` is "logistic", where the
    prediction is a logit, or "squared", where it is an estimate of y.

    >>> Classification(3)
    Classification(d = 3, logistic loss)
    """

    def __init__(
        self,
        dim: Count | None = None,
        cov: Array = 1.0,
        *,
        vector_cov: Array = 1.0,
        loss: LossKind = "logistic",
    ) -> None:
        self.cov = as_cov(cov, dim, "cov")
        self.dim = len(self.cov)
        self.token_dim = self.dim + 1
        self.vector_cov = as_cov(vector_cov, self.dim, "vector_cov")
        self.loss = loss

    def __repr__(self) -> str:
        return f"Classification(d = {self.dim}, {self.loss} loss)"

    def _draw(self, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype) -> Prompts:
        device = generator.device
        root, vector = (torch.linalg.cholesky(c).to(device, dtype).mT for c in (self.cov, self.vector_cov))
        m = normal(batch, self.dim, generator=generator, dtype=dtype) @ vector
        y = (torch.rand(batch, length + 1, generator=generator, dtype=dtype, device=device) < 0.5).to(dtype)
        y = 2 * y - 1
        white = normal(batch, length + 1, self.dim, generator=generator, dtype=dtype)
        x = white @ root + y[..., None] * m[:, None, :]
        tokens = torch.cat([x[:, 1:], y[:, 1:, None]], -1)
        return Prompts(tokens, pad(x[:, 0], (0, 1)), y[:, 0], m)

    def prompt_law(self, vector: Tensor) -> Mixture:
        vector = as_vector(vector, self.dim)
        cov = pad(self.cov.to(vector), (0, 1, 0, 1))
        centre = torch.cat([vector, vector.new_ones(1)])
        return Mixture([0.5, 0.5], [Gaussian(centre, cov), Gaussian(-centre, cov)])

    def tilted_mean(self, vectors: Vectors, a: Tilts) -> Tilts:
        check_sizes(vectors, vectors=(vectors, self.dim), a=(a, self.token_dim))
        centre = pad(vectors, (0, 1), value=1.0)
        gate = (centre * a).sum(-1, keepdim=True).tanh()
        return pad(a[..., :-1] @ self.cov.to(a), (0, 1)) + gate * centre

    def discriminant(self) -> tuple[Float[Tensor, "D D"], Float[Tensor, "D D"]]:
        """(U, V) whose infinite-prompt prediction is tanh(mᵀΣ⁻¹x) = E[y | x]: U = diag(Σ⁻¹, 0), V = diag(0, 1)."""
        V = torch.zeros(self.token_dim, self.token_dim, dtype=torch.float64)
        V[-1, -1] = 1.0
        return pad(torch.linalg.inv(self.cov), (0, 1, 0, 1)), V

    def affine_plus_sigmoid(
        self, U: Float[Tensor, "D D"], V: Float[Tensor, "D D"], vector: Float[Tensor, " d"]
    ) -> tuple[Float[Tensor, " d"], Tensor, Float[Tensor, " d"]]:
        """(slope, height, gate) of the infinite-prompt prediction slopeᵀx + height·(2σ(gateᵀx) − 1)."""
        check_sizes(U, U=(U, self.token_dim), V=(V, self.token_dim), vector=(vector, self.dim))
        centre, v = pad(vector, (0, 1), value=1.0), V[-1]
        slope = U[:-1, :-1].T @ (self.cov.to(U) @ v[:-1])
        return slope, v @ centre, 2 * U[:, :-1].T @ centre

    def _posterior(self, length: int) -> tuple[Tensor, Tensor]:
        """Covariances of m given L tokens, S = (P⁻¹ + LΣ⁻¹)⁻¹, and of x around its class's mean, Σ + S."""
        S = torch.linalg.inv(torch.linalg.inv(self.vector_cov) + length * torch.linalg.inv(self.cov))
        return S, self.cov + S

    def bayes(self, prompts: Prompts) -> Float[Tensor, " B"]:
        """The Bayes prediction: the logit 2 m̂ᵀ(Σ + S)⁻¹x, or for the squared loss E[y | x] = tanh of its half."""
        D = self.token_dim
        check_sizes(prompts.query, tokens=(prompts.tokens, D), query=(prompts.query, D))
        x, y = prompts.tokens[..., :-1], prompts.tokens[..., -1:]
        S, spread = (t.to(x) for t in self._posterior(x.shape[-2]))
        mean = (y * x).sum(-2) @ torch.linalg.solve(self.cov.to(x), S)
        half = (mean * torch.linalg.solve(spread, prompts.query[..., :-1, None])[..., 0]).sum(-1)
        return 2 * half if self.loss == "logistic" else half.tanh()

    def floor(self, length: int) -> Floor:
        """E_q E f(q + √q g), g ~ N(0, 1): the Bayes risk, with q = m̂ᵀ(Σ + S)⁻¹m̂ a weighted sum of chi-squares,
        since m̂ ~ N(0, P − S); f(t) = log(1 + e^{−2t}), or (1 − tanh t)²/2 for the squared loss."""
        S, spread = self._posterior(as_count(length, "length"))
        root = torch.linalg.cholesky(spread)
        inner = torch.linalg.solve_triangular(root, self.vector_cov - S, upper=False)
        b = torch.linalg.eigvalsh(torch.linalg.solve_triangular(root, inner.mT, upper=False))
        top = float(b.sum() + 130 * b.max() + 12 * b.square().sum().sqrt()) ** 0.5
        nodes, weights = (torch.as_tensor(t) for t in np.polynomial.legendre.leggauss(SPREAD_NODES))
        s, weights = top * (nodes + 1) / 2, top * weights / 2
        mass = weights * 2 * s * weighted_chi2(s.square(), b).log_pdf.exp()
        g = torch.linspace(-9, 9, GAUSS_NODES, dtype=torch.float64)
        normal = (-g.square() / 2).softmax(0)
        t = s[:, None].square() + s[:, None] * g
        losses = softplus(-2 * t) if self.loss == "logistic" else (1 - t.tanh()).square() / 2
        return Floor(float(mass @ (losses @ normal)), 0.0, "Bayes risk, exact to quadrature")
