"""Attention with n keys of a sphere against the hardmax limit, with κ by a rule: exact, no replicates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor

from attnlimit.attention import Head
from attnlimit.exact import Schedule, best_kappa, hardmax_error, hardmax_gap
from attnlimit.files.records import finite
from attnlimit.measures import Sphere
from attnlimit.studies.fields import Sizes
from attnlimit.studies.kind import Cells, Folder, Kind, Result, Row, table

Rule: TypeAlias = Literal["log", "best", "infinite"]


@dataclass(frozen=True, eq=False)
class Distance(Result):
    """To the hardmax limit."""

    columns = table("n:int kappa_at_n rms")

    dim: int
    rule: Rule
    n: tuple[int, ...]
    kappa: tuple[float, ...]
    """At each n."""
    rms: Float[Tensor, " n"]
    method: str

    def rows(self) -> Cells:
        yield from zip(self.n, finite(self.kappa), self.rms.tolist(), strict=True)

    def summary(self) -> dict[str, object]:
        record = self.to_dict()
        return {**record, "kappa": record.pop("rule"), "kappa_at_n": finite(self.kappa)}

    def shown(self) -> list[Row]:
        return [
            {
                "dim": self.dim,
                "kappa": self.rule,
                "largest n": self.n[-1],
                "rms at largest n": float(self.rms[-1]),
            }
        ]

    def methods(self) -> Row:
        return {"Method": self.method}


class Hardmax(Kind):
    """Keys on the unit sphere of R^dim, A = V = I, one query on it. `kappa` is the rule: gamma·log n, the best one for
    each n, or infinite (hardmax itself)."""

    title = "the way to hardmax"
    result = Distance
    noise = False

    dim: Annotated[int, Field(ge=2)]
    kappa: Rule
    gamma: PositiveFloat = 1.0
    n: Sizes

    def run(self, replicates: int, seed: int, place: Folder) -> Distance:
        head, law = Head(torch.eye(self.dim, dtype=torch.float64)), Sphere(self.dim)
        query = torch.eye(1, self.dim, dtype=torch.float64)
        if self.kappa == "infinite":
            hard = hardmax_error(head, law, self.n, query)
            sharp = (math.inf,) * len(self.n)
            return Distance(self.dim, self.kappa, tuple(self.n), sharp, hard.rms[0], hard.method)
        if self.kappa == "best":
            gap = best_kappa(head, law, self.n, query)
        else:
            gap = hardmax_gap(head, law, Schedule.log(self.gamma), self.n, query)
        return Distance(self.dim, self.kappa, tuple(self.n), gap.kappa, gap.rms[0], gap.method)
