"""The exact error on the plane of score spread κ and tokens n."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from attnlimit.exact import phase_diagram
from attnlimit.studies.fields import Fields, Sizes
from attnlimit.studies.kinds import Column, Kind, Result
from attnlimit.studies.laws import Law, like


class Phase(Fields):
    """The arguments of `attnlimit.phase_diagram`; scores are along the first axis."""

    law: Law
    kappa: Annotated[list[PositiveFloat], Field(min_length=2)]
    n: Sizes


def run(what: Phase, replicates: int, seed: int) -> Result:
    return phase_diagram(what.law.build(like("float64", "cpu")), what.kappa, what.n).to_dict()


def rows(result: Result) -> Iterator[tuple[Any, ...]]:
    for k, kappa in enumerate(result["kappa"]):
        for i, n in enumerate(result["n"]):
            yield kappa, n, result["relative_rms"][k][i], result["scale"][k], result["region"][k][i]


def summary(what: Phase, results: list[Result]) -> dict[str, Any]:
    return results[0]


COLUMNS: dict[str, Column] = {
    "kappa": "float",
    "n": "int",
    "relative_rms": "float",
    "scale": "float",
    "region": "text",
}
KIND = Kind("phase", Phase, run, COLUMNS, rows, summary)
