"""Training on finite prompts, one model per prompt length and replicate, as `attnlimit.icl.train` does it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from attnlimit.icl import train
from attnlimit.icl.spec import AnyTask, Method
from attnlimit.icl.training import over_seeds
from attnlimit.studies.fields import Fields, Sizes
from attnlimit.studies.kind import Column
from attnlimit.studies.laws import DTYPES, Dtype
from attnlimit.studies.untyped import Data, untyped

LONG = 5_000
"""Steps from which a training keeps checkpoints."""
BRIEF = 100
"""Steps of a training that is only timed."""
MEASURED = ("risk", "risk_error", "infinite_risk", "gradient_gap", "parameter_gap", "excess")


class Training(Fields, Method):
    """The arguments of `attnlimit.icl.train`, with which they share their meaning; replicates are its seeds."""

    task: AnyTask
    lengths: Sizes
    attention: Literal["softmax", "linear"] = "softmax"
    test_lengths: Sizes | None = None
    dtype: Dtype = "float32"
    device: Literal["cpu", "cuda"] = "cpu"


def run(what: Training, replicates: int, seed: int) -> Data:
    """A training that was stopped goes on from a checkpoint beside the machine's other temporary files, bit for bit."""
    kept = Path(tempfile.gettempdir()) / f"attnlimit-icl-{seed:016x}.safetensors"
    found = train(
        what.task.build(),
        what.lengths,
        attention=what.attention,
        seeds=replicates,
        test_lengths=what.test_lengths or (),
        dtype=DTYPES[what.dtype],
        device=what.device,
        generator=seed,
        checkpoint=kept if what.steps >= LONG else None,
        **{name: getattr(what, name) for name in Method.model_fields},
    )
    kept.unlink(missing_ok=True)
    rows = [[row[name] for name in ("seed", "step", "length", "time", *MEASURED)] for row in found.rows()]
    return {
        "rows": rows,
        "test_risk": found.test_risk[-1].tolist(),  # seeds × lengths × test lengths, when training ends
        "method": found.method.replace(f", {replicates} seeds", "", 1),
        "task": repr(found.task),
    }


COLUMNS: dict[str, Column] = {
    "replicate": "int",
    "step": "int",
    "length": "int",
    "time": "float",
    **dict.fromkeys(MEASURED, "float"),
}


def rows(result: Data) -> Iterator[list[Any]]:
    yield from result["rows"]


def summary(what: Training, results: list[Data]) -> dict[str, Any]:
    """Risks when training ends, with 95 % intervals over replicates, for each length."""
    last = [row for one in results for row in one["rows"] if row[1] == what.steps]
    record: dict[str, Any] = {
        "task": results[0]["task"],
        "lengths": what.lengths,
        "attention": what.attention,
    }
    for name in ("risk", "infinite_risk", "gradient_gap", "parameter_gap"):
        place = 4 + MEASURED.index(name)
        found = [[row[place] for row in last if row[2] == length] for length in what.lengths]
        if any(value is None for values in found for value in values):
            continue
        mean, low, high = over_seeds(torch.tensor(found, dtype=torch.float64))
        record[name] = mean.tolist()
        record[f"{name}_interval"] = [low.tolist(), high.tolist()]
    if what.test_lengths is not None:
        record["test_lengths"] = what.test_lengths
        record["test_risk"] = [row for one in results for row in one["test_risk"]]
    return {
        **record,
        "along": _along(what, results),
        "replicates": len(last) // len(what.lengths),
        "method": f"{results[0]['method']}; 95 % t intervals over replicates",
    }


def _along(what: Training, results: list[Data]) -> dict[str, Any]:
    """Steps and flow times of the reports, and what was measured at them as lists (replicate, report, length)."""
    rows = [row for one in results for row in sorted(one["rows"], key=lambda row: row[:3])]
    times = {row[1]: row[3] for row in rows}
    found: dict[str, Any] = {"step": list(times), "time": list(times.values())}
    for place, name in enumerate(MEASURED, 4):
        values = np.array([row[place] for row in rows], dtype=float)  # None as nan
        if not np.isnan(values).any():
            found[name] = values.reshape(-1, len(times), len(what.lengths)).tolist()
    return found


def check(what: Training) -> None:
    what.task.build()


def brief(what: Training) -> tuple[Training, float]:
    """A few steps."""
    steps = min(what.steps, BRIEF)
    part = {"steps": steps, "reports": 1, "evaluation": min(what.evaluation, what.batch)}
    return what.model_copy(update=part), what.steps / steps


KIND = untyped("icl", Training, run, COLUMNS, rows, summary, check=check, brief=brief, together=True)
