"""Tokens themselves as a measure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import Array, Seeded, as_count, as_float, as_generator, as_places
from attnlimit.measures.base import Matrix, Measure, Points, read
from attnlimit.measures.spec import Field, Form, Spec
from attnlimit.numerics.atoms import Atoms
from attnlimit.numerics.order import Largest
from attnlimit.numerics.softmax import SCORES_AT_ONCE, attend, log_mean_exp, tilted_covariance


class Empirical(Measure):
    """n tokens as the measure Σ_j w_j δ_{y_j}, w_j = 1/n unless given: tilting it is softmax attention itself,

        Λ(a) = log Σ_j w_j e^{aᵀy_j},   tilted_mean(a) = Σ_j p_j v_j,   p = softmax(aᵀy_j + log w_j).

    `values` (n, dv) may differ from the tokens, which are then the keys: a measure on pairs (k, v).

    >>> Empirical([[0.0], [1.0]]).tilted_mean([[0.0], [100.0]])
    tensor([[0.5000],
            [1.0000]], dtype=torch.float64)
    """

    spec = Spec(
        "population",
        tokens=Field(Form.TOKENS),
        law=Field(Form.LAW, None),
        seed=Field(Form.SEED, 0),
    )
    narrows = True

    def __init__(self, tokens: Array, values: Array | None = None, weights: Array | None = None) -> None:
        tokens = as_float(tokens, "tokens")
        if tokens.ndim != 2:
            raise InputError(f"tokens must have shape (n, d), got {tuple(tokens.shape)}.")
        if tokens.shape[0] == 0 or tokens.shape[1] == 0:
            raise InputError(
                f"tokens are empty (shape {tuple(tokens.shape)}): attention needs at least one key."
            )
        super().__init__(tokens.shape[1], dtype=tokens.dtype, device=tokens.device)
        self.tokens = tokens
        self.values = tokens
        if values is not None:
            self.values = as_float(values, "values", dtype=tokens.dtype, device=tokens.device)
            if self.values.ndim != 2 or self.values.shape[0] != len(self):
                raise InputError(
                    f"values must have shape ({len(self)}, dv), one row a token, got {tuple(self.values.shape)}."
                )
        self.weights = None if weights is None else checked_weights(weights, len(self), like=tokens)

    @classmethod
    def from_spec(cls, like: Tensor, **fields: Any) -> Empirical:
        """The tokens of a file, or so many draws of a law."""
        tokens, law = fields["tokens"], fields["law"]
        if isinstance(tokens, Tensor):
            return cls(tokens)
        if law is None:
            raise InputError(
                "A population has tokens: {file: …}, or a number of tokens and the law they are drawn from."
            )
        return law.sample(tokens, generator=fields["seed"])

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __repr__(self) -> str:
        return f"Empirical(n={len(self)}, dim={self.dim})"

    @cached_property
    def radius(self) -> float:  # type: ignore[override]
        return float(self.tokens[self.probabilities > 0].norm(dim=-1).max())

    @cached_property
    def variance_proxy(self) -> float | None:  # type: ignore[override]
        """Hoeffding: the scores lie within ‖a‖ times the largest distance from the mean."""
        p = self.probabilities
        return float((self.tokens - p @ self.tokens)[p > 0].norm(dim=-1).max()) ** 2

    @property
    def probabilities(self) -> Float[Tensor, " n"]:
        """w_j, also when they are all 1/n."""
        return self.tokens.new_full((len(self),), 1 / len(self)) if self.weights is None else self.weights

    @property
    def log_weights(self) -> Float[Tensor, " n"] | None:
        """log w_j up to a common constant, or None when all are equal."""
        return None if self.weights is None else self.weights.log()

    def _cgf(self, a: Points) -> Float[Tensor, "*batch"]:
        log_weights = self.probabilities.log()
        blocks = a.reshape(-1, self.dim).split(max(1, SCORES_AT_ONCE // len(self)))
        return torch.cat([log_mean_exp(b @ self.tokens.T, log_weights) for b in blocks]).reshape(a.shape[:-1])

    def _tilted_mean(self, a: Points) -> Float[Tensor, "*batch dv"]:
        mean = attend(a.reshape(-1, self.dim), self.tokens, self.values, self.log_weights).mean
        return mean.reshape(*a.shape[:-1], self.values.shape[1])

    def _tilted_cov(self, a: Points) -> Float[Tensor, "*batch dv d"]:
        return self._cross(a, self.tokens)

    def tilted_value_cov(self, a: Array) -> Tensor:
        return self._cross(self._inside(a), self.values)

    def _cross(self, a: Points, others: Float[Tensor, "n e"]) -> Float[Tensor, "*batch dv e"]:
        flat = a.reshape(-1, self.dim)
        cross = tilted_covariance(flat, self.tokens, self.values, others, self.log_weights)
        return cross.reshape(*a.shape[:-1], *cross.shape[-2:])

    def _top(self, a: Points) -> Float[Tensor, "*batch dv"]:
        """Ties are averaged; scores within rounding of each other are ties."""
        rounding = 8 * torch.finfo(self.dtype).eps * self.radius
        tops = []
        for block in a.reshape(-1, self.dim).split(max(1, SCORES_AT_ONCE // len(self))):
            scores = (block @ self.tokens.T).where(self.probabilities > 0, -torch.inf)
            slack = rounding * block.norm(dim=-1, keepdim=True)
            ties = self.probabilities * (scores >= scores.amax(-1, keepdim=True) - slack)
            tops.append(ties @ self.values / ties.sum(-1, keepdim=True))
        return torch.cat(tops).reshape(*a.shape[:-1], self.values.shape[1])

    def score_range(self, a: Points) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        tokens = self.tokens[self.probabilities > 0]
        scores = [b @ tokens.T for b in a.reshape(-1, self.dim).split(max(1, SCORES_AT_ONCE // len(tokens)))]
        low, high = (torch.cat([end(s, -1) for s in scores]) for end in (torch.amin, torch.amax))
        return low.reshape(a.shape[:-1]), high.reshape(a.shape[:-1])

    def value_radius(self, V: Matrix | None) -> float:
        return float(read(V, self.values[self.probabilities > 0]).norm(dim=-1).max())

    def project(self, a: Float[Tensor, "m d"], V: Matrix | None, finer: float = 1.0) -> Atoms:
        """Every token an atom: exact, at a cost linear in tokens times quadrature points."""
        mean, log_mass = read(V, self.values)[None], self.probabilities.log().expand(len(a), -1)
        limit = read(V, self.tilted_mean(a))
        return Atoms(a @ self.tokens.T, log_mass, mean, mean.new_zeros(1, len(self)), limit)

    def largest(self, n: Sequence[int], a: Float[Tensor, "m d"], V: Matrix | None) -> Largest:
        """Keys drawn with replacement by their weights."""
        return self._largest_of_atoms(n, a, V)

    def spread(self, rows: Float[Tensor, "*heads r d"] | None) -> Float[Tensor, "*heads r r"]:
        """From √w_j (y_j − mean), whose Gram matrix is the covariance of the keys."""
        tokens, weights = self.tokens.double(), self.probabilities.double()
        centred = weights.sqrt()[:, None] * (tokens - weights @ tokens)
        if rows is not None and len(self) < self.dim:
            seen = centred @ rows.mT  # n × r: smaller than a d × d covariance
            return seen.mT @ seen
        cov = centred.mT @ centred
        return cov if rows is None else rows @ cov @ rows.mT

    @property
    def population(self) -> Empirical:  # type: ignore[override]
        return self

    @property
    def keys(self) -> Empirical:
        return self if self.values is self.tokens else Empirical(self.tokens, weights=self.weights)

    @property
    def value_dim(self) -> int:
        return self.values.shape[1]

    @property
    def provenance(self) -> str:
        return f"attention over the whole population of {len(self)} keys"

    def select(self, index: Tensor, weights: Tensor | None = None) -> Empirical:
        """The tokens at these positions, equally weighted, or in proportion to `weights`."""
        index = as_places(index, len(index), len(self), self.device, "index")
        values = None if self.values is self.tokens else self.values[index]
        return Empirical(self.tokens[index], values, None if weights is None else weights / weights.sum())

    @property
    def key_mean(self) -> Float[Tensor, " d"]:
        return self.probabilities @ self.tokens

    def second_moment(self) -> Float[Tensor, "dv d"]:
        return (self.probabilities[:, None] * self.values).T @ self.tokens

    def sample(self, n: int, *, generator: Seeded) -> Empirical:
        """n tokens drawn with replacement from these."""
        n, generator = as_count(n), as_generator(generator, self.device)
        if self.weights is None:
            return self.select(torch.randint(len(self), (n,), generator=generator, device=self.device))
        return self.select(torch.multinomial(self.weights, n, replacement=True, generator=generator))


def checked_weights(weights: Array, count: int, *, like: Tensor) -> Tensor:
    """Probabilities: one a part, not negative, of sum one (made exact when it is one up to rounding)."""
    weights = as_float(weights, "weights", dtype=like.dtype, device=like.device)
    if weights.shape != (count,):
        raise InputError(f"weights must have shape ({count},), got {tuple(weights.shape)}.")
    if bool((weights < 0).any()):
        raise InputError(f"weights must not be negative, got a least one of {float(weights.min()):.3g}.")
    total = float(weights.sum())
    if abs(total - 1) > 1e3 * torch.finfo(like.dtype).eps * max(1, count**0.5):
        raise InputError(f"weights must sum to one, got {total:.6g}: divide them by their sum.")
    return weights / total
