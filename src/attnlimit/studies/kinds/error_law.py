"""The law of the error at a query: exact quantiles, sampled errors, and what the central limit theorem says."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from attnlimit.attention import Head, clt
from attnlimit.exact import error_law
from attnlimit.measures import Measure
from attnlimit.studies.kind import Cells, Folder, Result, Row, crossed, table
from attnlimit.studies.setting import Setting

TOKENS_AT_ONCE = 2**20
LEVELS = [0.005, 0.05, 0.5, 0.95, 0.995]
Level = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, eq=False)
class LawQuantiles(Result):
    """Of the error's first coordinate."""

    columns = table("replicate:int n:int error")
    by_replicate = ("errors",)

    n: tuple[int, ...]
    levels: tuple[float, ...]
    exact: Float[Tensor, "n q"]
    normal: Float[Tensor, "n q"]
    """By the central limit theorem."""
    errors: Float[Tensor, "replicates n"]

    def below(self, at: Float[Tensor, "n q"]) -> Float[Tensor, "n q"]:
        """The share of sampled errors up to these."""
        return (self.errors[:, :, None] <= at).double().mean(0)

    def rows(self) -> Cells:
        return crossed([range(len(self.errors)), self.n], self.errors)

    def shown(self) -> list[Row]:
        ends = (f"{level:.1%} quantile" for level in self.levels)
        return [{"largest n": self.n[-1], **dict(zip(ends, self.exact[-1].tolist(), strict=True))}]


class ErrorLaws(Setting):
    """A head on a law, at sizes n and the query (1, 0, …)."""

    title = "laws of the error"
    result = LawQuantiles
    together = True
    tried = 500

    levels: Annotated[list[Level], Field(min_length=1)] = LEVELS

    def run(self, replicates: int, seed: int, place: Folder) -> LawQuantiles:
        head, law = self.build()
        x = torch.eye(head.query_dim, dtype=torch.float64)[0]
        one = head.along(torch.eye(head.V.shape[-2], dtype=torch.float64)[0])
        levels = torch.tensor(self.levels, dtype=torch.float64)
        z = torch.tensor([NormalDist().inv_cdf(q) for q in self.levels], dtype=torch.float64)
        size = torch.tensor(self.n, dtype=torch.float64)[:, None]
        normal = z * (clt(one, law, x).covariance[0, 0] / size).sqrt()
        exact = torch.stack([error_law(one, law, n, x).quantile(levels) for n in self.n])
        generator = torch.Generator(law.device).manual_seed(seed)
        errors = torch.stack([_sampled(one, law, n, x, replicates, generator) for n in self.n], 1)
        return LawQuantiles(tuple(self.n), tuple(self.levels), exact, normal, errors)


def _sampled(
    head: Head, law: Measure, n: int, x: Tensor, replicates: int, generator: torch.Generator
) -> Float[Tensor, " replicates"]:
    """Γ_n(x) − Γ(x), so many times."""
    a, limit, found = head.score_vector(x), head(law)(x)[0], []
    for some in torch.arange(replicates).split(max(1, TOKENS_AT_ONCE // n)):
        tokens = law.sample(len(some) * n, generator=generator).tokens
        scores, values = (tokens @ a).reshape(-1, n), head.read_linear(tokens).reshape(-1, n)
        found.append((scores.softmax(1) * values).sum(1) - limit)
    return torch.cat(found)
