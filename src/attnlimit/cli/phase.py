"""attnlimit phase: where averaging ends, and where the limit is out of reach."""

from __future__ import annotations

from typing import Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import AsJson, Plot, Sizes, numbers, out, print_json, table, whole_numbers
from attnlimit.cli.law_options import of_law
from attnlimit.report.figures.style import save

MOST = 1_000
MARKS = {"averaging": " ", "few keys": "*", "not reached": "!"}


@of_law()
def phase(
    law: al.Measure,
    kappa: Annotated[
        str, typer.Option(help="Spread of the scores (inverse temperature), a range.")
    ] = "0.25:8:31",
    n: Sizes = "1e1:1e9:33",
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Error of attention over the plane of score spread κ and tokens n, with the two lines of the random energy model."""
    diagram = al.phase_diagram(law, numbers(kappa, "--kappa", MOST), whole_numbers(n, most=MOST))
    where = None if plot is None else save(diagram.plot(), plot)
    if as_json:
        print_json(diagram.to_dict())
        return
    columns, regions = _spaced(len(diagram.n), 6), diagram.region
    rows = [
        (
            f"{diagram.kappa[i]:.3g}",
            *(f"{float(diagram.relative_rms[i, j]):.1e}{MARKS[regions[i][j]]}" for j in columns),
        )
        for i in _spaced(len(diagram.kappa), 12)
    ]
    heads = ["κ", *(f"n = {diagram.n[j]:.0e} " for j in columns)]
    out.print(table(f"Relative rms error, {diagram.law}", heads, rows))
    out.print("No mark: averaging; *: few keys dominate; !: the limit is not reached.")
    out.print(f"Method: {diagram.method}.")
    if where is not None:
        out.print(f"Figure: {where}")


def _spaced(count: int, most: int) -> list[int]:
    """At most `most` indices, evenly spread, ends included."""
    if count <= most:
        return list(range(count))
    return sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})
