"""The phase diagrams of a study."""

from __future__ import annotations

from collections.abc import Sequence

from attnlimit.report.figures.phase import phase_figure
from attnlimit.report.figures.study import StudyFigure, pictures
from attnlimit.studies.kind import Point
from attnlimit.studies.kinds.phase import Plane


@pictures.register(Plane)
def _pictures(first: Plane, name: str, points: Sequence[Point[Plane]]) -> list[StudyFigure]:
    words = "Exact relative errors, with the two lines of the random energy model."
    return [
        StudyFigure(
            f"phase-{one.index}", f"Phases: {one.result.diagram.law}", words, phase_figure(one.result.diagram)
        )
        for one in points
        if len(one.result.diagram.n) > 1
    ]
