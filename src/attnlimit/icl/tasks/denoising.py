"""In-context denoising of a Gaussian mixture."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from attnlimit.icl.tasks.base import (
    Floor,
    InContextTask,
    Prompts,
    Tilts,
    Vectors,
    as_vector,
    check_sizes,
    normal,
)
from attnlimit.inputs import Count, Positive, as_count
from attnlimit.measures import Gaussian, Mixture

FLOOR_DRAWS, FLOOR_SEED = 20_000, 2512_11785


class MixtureDenoising(InContextTask):
    """Tokens y ~ (1/K) Σ_k N(c_k, spread·I); query y + noise with y a fresh token and noise ~ N(0, noise·I); target y,
    the whole vector. Task vector: the K centres c_k, independent and uniform on the sphere of radius `radius`.

    The infinite-prompt head is ∇Λ(a) = Σ_k α_k c_k + spread·a, α = softmax(c_kᵀa) [gabet2026mixtures]. With
    U = I/(spread + noise) its gates α are the posterior of the query's component, and with V = I and spread → 0 the head
    is the best denoiser there is. `spread` and `noise` are variances.

    >>> MixtureDenoising(4, components=3)
    MixtureDenoising(d = 4, 3 components)
    """

    def __init__(
        self,
        dim: Count,
        components: Count = 3,
        *,
        radius: Positive = 1.0,
        spread: Positive = 0.01,
        noise: Positive = 0.25,
    ) -> None:
        self.dim = self.token_dim = dim
        self.components = components
        self.radius, self.spread, self.noise = radius, spread, noise

    def __repr__(self) -> str:
        return f"MixtureDenoising(d = {self.dim}, {self.components} components)"

    def _draw(self, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype) -> Prompts:
        device, K = generator.device, self.components
        white = normal(batch, K, self.dim, generator=generator, dtype=dtype)
        centres = self.radius * normalize(white, dim=-1)
        which = torch.randint(K, (batch, length + 1), generator=generator, device=device)
        chosen = centres.gather(1, which[..., None].expand(-1, -1, self.dim))
        white = normal(batch, length + 1, self.dim, generator=generator, dtype=dtype)
        y = chosen + self.spread**0.5 * white
        noise = normal(batch, self.dim, generator=generator, dtype=dtype)
        return Prompts(y[:, 1:], y[:, 0] + self.noise**0.5 * noise, y[:, 0], centres.flatten(1))

    def read(self, output: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """The whole output."""
        return output

    def prompt_law(self, vector: Tensor) -> Mixture:
        vector = as_vector(vector, self.components * self.dim)
        spread = vector.new_tensor(self.spread)
        parts = [Gaussian(centre, spread) for centre in vector.reshape(self.components, self.dim)]
        return Mixture([1 / self.components] * self.components, parts)

    def _centres(self, vectors: Vectors, **rows: Tensor) -> Float[Tensor, "B K D"]:
        """Of each task vector, which fit the points that are given by name."""
        fit = {name: (points, self.dim) for name, points in rows.items()}
        check_sizes(vectors, vectors=(vectors, self.components * self.dim), **fit)
        return vectors.unflatten(-1, (self.components, self.dim))

    def tilted_mean(self, vectors: Vectors, a: Tilts) -> Tilts:
        centres = self._centres(vectors, a=a)
        gates = (centres @ a[..., None]).softmax(-2)
        return (gates * centres).sum(-2) + self.spread * a

    def best(self, vectors: Float[Tensor, "B p"], query: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """E[y | query, centres] = Σ_k γ_k (c_k + ρ (query − c_k)), ρ = spread/(spread + noise)."""
        centres = self._centres(vectors, query=query)
        gates = (centres @ query[..., None] / (self.spread + self.noise)).softmax(-2)
        share = self.spread / (self.spread + self.noise)
        return (1 - share) * (gates * centres).sum(-2) + share * query

    def floor(self, length: int) -> Floor:
        """The risk of the best denoiser that knows the centres: the limit of the Bayes risk for long prompts, and below
        it at every length."""
        as_count(length, "length")
        prompts = self.draw(FLOOR_DRAWS, 1, FLOOR_SEED)
        risks = self.risk(self.best(prompts.vector, prompts.query), prompts.target)
        kind = f"Bayes risk with known centres (a lower bound at finite length), Monte Carlo over {FLOOR_DRAWS:,} draws"
        return Floor(float(risks.mean()), float(risks.std()) / FLOOR_DRAWS**0.5, kind)
