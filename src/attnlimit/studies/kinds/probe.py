"""Tasks that compute next to nothing, to try a cluster or a specification: they wait, draw a number, or fail."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeFloat

from attnlimit.studies.kind import Cells, Folder, Kind, Result, Row, table


@dataclass(frozen=True)
class Draws(Result):
    """A random number a replicate."""

    columns = table("replicate:int draw")

    value: float
    draws: tuple[float, ...]
    by_replicate = ("draws",)

    def rows(self) -> Cells:
        yield from enumerate(self.draws)

    @property
    def mean(self) -> float:
        return sum(self.draws) / len(self.draws)

    def summary(self) -> dict[str, object]:
        return {"replicates": len(self.draws), "mean": self.mean}

    def shown(self) -> list[Row]:
        return [{"replicates": len(self.draws), "mean": self.mean}]


class Probe(Kind):
    """`fail`: no, raise (an error), or die (the worker is killed, as when memory runs out)."""

    title = "probes"
    result = Draws
    together = True

    value: float = 0.0
    seconds: NonNegativeFloat = 0.0
    fail: Literal["no", "raise", "die"] = "no"

    def run(self, replicates: int, seed: int, place: Folder) -> Draws:
        if self.seconds:
            time.sleep(self.seconds)
        if self.fail == "die":
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has but one way
        if self.fail == "raise":
            raise RuntimeError(f"a probe that fails, value {self.value:g}")
        stream = random.Random(seed)
        return Draws(self.value, tuple(stream.random() for _ in range(replicates)))
