"""The numbers behind a figure as one table."""

from __future__ import annotations

from collections.abc import Mapping

from attnlimit.studies.kind import Row, short
from attnlimit.studies.view import Findings


def table(runs: Mapping[str, Findings]) -> list[Row]:
    """The rows of every study's results, with what varies between its points."""
    many = len(runs) > 1
    return [
        {
            **({"study": name} if many else {}),
            **{short(path): value for path, value in point.varies.items()},
            **dict(zip(point.result.columns, row, strict=True)),
        }
        for name, found in runs.items()
        for point in found.points
        for row in point.result.rows()
    ]
