"""Tasks that compute next to nothing, to try a cluster or a specification: they wait, draw a number, or fail."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import NonNegativeFloat

from attnlimit.studies.fields import Fields
from attnlimit.studies.kinds import Kind, Result


class Probe(Fields):
    """`fail`: no, raise (an error), or die (the worker is killed, as when memory runs out)."""

    value: float = 0.0
    seconds: NonNegativeFloat = 0.0
    fail: Literal["no", "raise", "die"] = "no"


def run(what: Probe, replicates: int, seed: int) -> Result:
    if what.seconds:
        time.sleep(what.seconds)
    if what.fail == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what.fail == "raise":
        raise RuntimeError(f"a probe that fails, value {what.value:g}")
    stream = random.Random(seed)
    return {"value": what.value, "draws": [stream.random() for _ in range(replicates)]}


def rows(result: Result) -> Iterator[tuple[int, float]]:
    yield from enumerate(result["draws"])


def summary(what: Probe, results: list[Result]) -> dict[str, Any]:
    draws = [draw for one in results for draw in one["draws"]]
    return {"replicates": len(draws), "mean": sum(draws) / len(draws)}


KIND = Kind("probe", Probe, run, {"replicate": "int", "draw": "float"}, rows, summary, together=True)
