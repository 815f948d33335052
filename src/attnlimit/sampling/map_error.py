"""The error of the map itself, averaged over queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnlimit.sampling.replicates import replicate
from attnlimit.sampling.statistic import Experiment, Row, Setup, Statistic


@dataclass(frozen=True)
class Map(Statistic):
    """E_x‖Γ_n(x) − Γ(x)‖, and its square."""

    name = "map"

    def experiment(self, setup: Setup) -> Experiment:
        return MapErrors(setup)


@dataclass(frozen=True, eq=False)
class MapErrors(Experiment):
    """Averages of ‖Γ_n(x) − Γ(x)‖ and of its square over the queries of a replicate."""

    @property
    def method(self) -> str:
        setup = self.setup
        if setup.queries is not None:
            return f"{self.drawn()}, {setup.m} given queries"
        source = "of the n tokens" if setup.self_attention else "fresh"
        return f"{self.drawn()}, m = {setup.m} {source} queries a replicate"

    def row(self, generator: torch.Generator) -> Row:
        squares, norms = [], []
        for sample in replicate(self.setup, generator):
            error = (sample.outputs - sample.limits).double().norm(dim=-1)
            squares.append(error.square().mean())
            norms.append(error.mean())
        return Row(torch.stack(squares), torch.stack(norms))
