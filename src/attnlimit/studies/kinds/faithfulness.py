"""Deletion and insertion: how far a model's answer changes if its heads read only the first keys of an order, or all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.models.judge.faithful import CURVES, ORDERS, faithfulness
from attnlimit.models.see.gradient import unit
from attnlimit.models.see.text import token_windows
from attnlimit.studies.kind import Cells, Folder, Row, crossed, table
from attnlimit.studies.model_fields import OfModel, OnText, digits

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True, eq=False)
class Faithful(OfModel):
    """Changes of the answer, window by window."""

    unit: str
    tokens: int
    shares: tuple[float, ...]
    """Of the keys that a query sees."""
    changes: Float[Tensor, "windows orders curves shares"]
    columns = table("order:text curve:text share change window:int")

    def rows(self) -> Cells:
        for window, found in enumerate(self.changes):
            for row in crossed([ORDERS, CURVES, self.shares], found):
                yield *row, window

    def shown(self) -> list[Row]:
        mean = self.changes.mean(0)
        return [
            {
                "curve": curve,
                "share": share,
                **{order: float(mean[place, c, k]) for place, order in enumerate(ORDERS)},
            }
            for c, curve in enumerate(CURVES)
            for k, share in enumerate(self.shares)
        ]

    def ratio(self, order: str, other: str, curve: str) -> Float[Tensor, " windows"]:
        """How many times as far the answer changes with one order as with another: mean over shares of the logarithm."""
        logs = self.changes[:, :, CURVES.index(curve)].clamp_min(1e-12).log()
        return (logs[:, ORDERS.index(order)] - logs[:, ORDERS.index(other)]).mean(-1)


class Faithfulness(OnText):
    """`windows` windows of `tokens` tokens; heads read the first `shares` of the keys, or all others."""

    title = "Answers from the first keys of an order, or from all others"
    result = Faithful
    noise = False

    tokens: Annotated[int, Field(ge=8, le=1024)] = 256
    windows: Annotated[int, Field(ge=2)] = 8
    shares: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)] = SHARES

    def run(self, replicates: int, seed: int, place: Folder = None) -> Faithful:
        ready, generator = self.loaded(), torch.Generator().manual_seed(seed)
        found = token_windows(ready.need_tokenizer(), self.documents(), self.tokens, most=self.windows)
        if len(found) < 2:
            raise InputError(
                f"The texts have {len(found)} windows of {self.tokens} tokens, and at least 2 are needed: give more text."
            )
        changes = [faithfulness(ready, one[None], self.shares, generator) for one in found]
        return Faithful(
            model=self.model.use,
            weights=self.model.words(),
            unit=unit(ready.kind),
            tokens=self.tokens,
            shares=self.shares,
            changes=digits(torch.stack(changes), 6),
        )
