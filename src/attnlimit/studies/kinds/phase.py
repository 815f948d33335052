"""The exact error on the plane of score spread κ and tokens n."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveFloat

from attnlimit.exact import phase_diagram
from attnlimit.exact.phase import PhaseDiagram
from attnlimit.studies.fields import Fields, Sizes
from attnlimit.studies.kind import Array, Cell, Column, Kind, Result, Row
from attnlimit.studies.laws import Law, like


class Phase(Fields):
    """The arguments of `attnlimit.phase_diagram`; scores are along the first axis."""

    law: Law
    kappa: Annotated[list[PositiveFloat], Field(min_length=2)]
    n: Sizes


@dataclass(frozen=True, eq=False)
class Plane(Result):
    """The diagram of `attnlimit.phase_diagram`."""

    columns: ClassVar[Mapping[str, Column]] = {
        "kappa": "float",
        "n": "int",
        "relative_rms": "float",
        "scale": "float",
        "region": "text",
    }

    kappa: tuple[float, ...]
    n: tuple[int, ...]
    relative_rms: Array
    scale: Array
    log_n_averaging: Array
    log_n_reached: Array
    law: str
    method: str

    @property
    def diagram(self) -> PhaseDiagram:
        return PhaseDiagram(**vars(self))

    def rows(self) -> Iterator[Sequence[Cell]]:
        region, rms, scale = self.diagram.region, self.relative_rms.tolist(), self.scale.tolist()
        for k, kappa in enumerate(self.kappa):
            for i, n in enumerate(self.n):
                yield kappa, n, rms[k][i], scale[k], region[k][i]

    def summary(self) -> dict[str, Any]:
        return self.diagram.to_dict()

    def shown(self) -> list[Row]:
        last = self.relative_rms[:, -1].tolist()
        return [
            {"law": self.law, "kappa": kappa, "largest n": self.n[-1], "relative rms there": error}
            for kappa, error in zip(self.kappa, last, strict=True)
        ]

    def methods(self) -> Row:
        return {"Method": self.method}


def run(what: Phase, replicates: int, seed: int, place: Path | None) -> Plane:
    return Plane(**vars(phase_diagram(what.law.build(like("float64", "cpu")), what.kappa, what.n)))


KIND = Kind(name="phase", title="phase diagrams", what=Phase, result=Plane, run=run, noise=False)
