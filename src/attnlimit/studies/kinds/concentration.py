"""Outputs and gradients over prompts of L tokens against the infinite prompt, as `attnlimit.icl.concentration` has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from pydantic import PositiveInt

from attnlimit.errors import AttnlimitError
from attnlimit.icl.concentration import concentration
from attnlimit.icl.exact_outputs import exact_outputs
from attnlimit.sampling import Convergence
from attnlimit.studies.kind import Column
from attnlimit.studies.setting import Setting, told
from attnlimit.studies.untyped import Data, untyped


class Concentration(Setting):
    """A head on the law of prompts, at prompt lengths n; queries follow the same law."""

    queries: PositiveInt = 64


def run(what: Concentration, replicates: int, seed: int) -> Data:
    head, law = what.build()
    found = concentration(
        head, law, what.n, query_count=what.queries, replicates=replicates, exact=False, generator=seed
    )
    return {
        "n": list(found.lengths),
        "squares": {name: one.squares.tolist() for name, one in found.errors.items()},
        "norms": {name: one.errors.tolist() for name, one in found.errors.items()},
    }


def rows(result: Data) -> Iterator[tuple[Any, ...]]:
    for name, errors in result["norms"].items():
        for replicate, row in enumerate(errors):
            for n, error, square in zip(result["n"], row, result["squares"][name][replicate], strict=True):
                yield replicate, name, n, error, square


def summary(what: Concentration, results: list[Data]) -> dict[str, Any]:
    """Curves and fits of every quantity, and the exact rms error of the outputs."""
    record: dict[str, Any] = {"n": results[0]["n"], **told(what.limit())}
    for name in results[0]["squares"]:
        curve = _curve(name, results)
        record[name] = {
            "rms": curve.rms.tolist(),
            "rms_standard_error": curve.rms_standard_error.tolist(),
            "fit": curve.fit("rms").to_dict(),
        }
        record["replicates"] = curve.replicates
    try:
        head, law = what.build()
        exact = exact_outputs(head, law, tuple(record["n"]), None)
    except AttnlimitError:
        exact = None
    record["exact_output_rms"] = None if exact is None else exact.error.tolist()
    return record


def _curve(name: str, results: list[Data]) -> Convergence:
    squares, norms = (
        torch.tensor([row for one in results for row in one[field][name]], dtype=torch.float64)
        for field in ("squares", "norms")
    )
    return Convergence(tuple(results[0]["n"]), name, squares, norms, "Monte Carlo", "infinite prompt")


COLUMNS: dict[str, Column] = {
    "replicate": "int",
    "quantity": "text",
    "n": "int",
    "error": "float",
    "square": "float",
}
KIND = untyped(
    "concentration",
    Concentration,
    run,
    COLUMNS,
    rows,
    summary,
    check=Concentration.build,
    together=True,
)
