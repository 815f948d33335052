"""The error of the map itself, averaged over queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnlimit.sampling.experiment import Experiment, Row
from attnlimit.sampling.replicates import replicate


@dataclass(frozen=True, eq=False)
class MapErrors(Experiment):
    """Averages of ‖Γ_n(x) − Γ(x)‖ and of its square over the queries of a replicate."""

    @property
    def method(self) -> str:
        plan = self.plan
        if plan.queries is not None:
            return f"{self.drawn()}, {plan.m} given queries"
        source = "of the n tokens" if plan.self_attention else "fresh"
        return f"{self.drawn()}, m = {plan.m} {source} queries a replicate"

    def row(self, generator: torch.Generator) -> Row:
        squares, norms = [], []
        for sample in replicate(self.plan, generator):
            error = (sample.outputs - sample.limits).double().norm(dim=-1)
            squares.append(error.square().mean())
            norms.append(error.mean())
        return Row(torch.stack(squares), torch.stack(norms))
