"""A bounded law on the line that tends to a Gaussian."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnlimit.inputs import as_count
from attnlimit.measures.empirical import Empirical
from attnlimit.measures.spec import Field, Form, Spec


class Signs(Empirical):
    """The sum of `count` random signs over √count, on the line: bounded by R = √count, and Gaussian as R → ∞."""

    spec = Spec("signs", count=Field(Form.COUNT))

    def __init__(self, count: int, like: Tensor | None = None) -> None:
        like = torch.empty(0, dtype=torch.float64) if like is None else like
        count = as_count(count, "count")
        up = torch.arange(count + 1, dtype=torch.float64)
        log_mass = -torch.lgamma(up + 1) - torch.lgamma(count - up + 1)
        atoms = (2 * up - count) / count**0.5
        super().__init__(atoms[:, None].to(like), weights=log_mass.softmax(0).to(like))

    @classmethod
    def from_spec(cls, like: Tensor, **fields: Any) -> Signs:
        return cls(fields["count"], like)
