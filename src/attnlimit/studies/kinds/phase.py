"""The exact error on the plane of score spread κ and tokens n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveFloat

from attnlimit.exact import phase_diagram
from attnlimit.exact.phase import PhaseDiagram
from attnlimit.studies.fields import Sizes
from attnlimit.studies.kind import Cells, Folder, Kind, Result, Row, table
from attnlimit.studies.setting import Law, like


@dataclass(frozen=True, eq=False)
class Plane(Result):
    """The diagram of `attnlimit.phase_diagram`."""

    columns = table("kappa n:int relative_rms scale region:text")

    diagram: PhaseDiagram

    def rows(self) -> Cells:
        found = self.diagram
        region, rms, scale = found.region, found.relative_rms.tolist(), found.scale.tolist()
        for k, kappa in enumerate(found.kappa):
            for i, n in enumerate(found.n):
                yield kappa, n, rms[k][i], scale[k], region[k][i]

    def summary(self) -> dict[str, object]:
        return self.diagram.to_dict()

    def shown(self) -> list[Row]:
        found = self.diagram
        return [
            {"law": found.law, "kappa": kappa, "largest n": found.n[-1], "relative rms at largest n": error}
            for kappa, error in zip(found.kappa, found.relative_rms[:, -1].tolist(), strict=True)
        ]

    def methods(self) -> Row:
        return {"Method": self.diagram.method}


class Phase(Kind):
    """The arguments of `attnlimit.phase_diagram`; scores are along the first axis."""

    title = "phase diagrams"
    result = Plane
    noise = False

    law: Law
    kappa: Annotated[list[PositiveFloat], Field(min_length=2)]
    n: Sizes

    def run(self, replicates: int, seed: int, place: Folder) -> Plane:
        return Plane(phase_diagram(self.law.build(like("float64", "cpu")), self.kappa, self.n))
