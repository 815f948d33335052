"""attnlimit bound: what can be proved for n tokens."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from attnlimit import bounds
from attnlimit.bounds import Bound
from attnlimit.cli.common import (
    AsJson,
    Cov,
    Dim,
    Horizon,
    MatrixA,
    MatrixV,
    MeasureName,
    Scale,
    Sizes,
    guarded,
    head_of,
    law_of,
    out,
    print_json,
    table,
    whole_numbers,
)
from attnlimit.inputs import as_positive


@guarded
def bound(
    measure: MeasureName = "sphere",
    dim: Dim = 3,
    cov: Cov = None,
    scale: Scale = 1.0,
    horizon: Horizon = None,
    A: MatrixA = None,
    V: MatrixV = None,
    n: Sizes = "1e2,1e4,1e6",
    query_radius: Annotated[float, typer.Option(help="Queries have norm up to this.")] = 1.0,
    delta: Annotated[
        float, typer.Option(help="Probability with which a high-probability bound may fail.")
    ] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Proved upper bounds on the error of n-token attention, with explicit constants and their hypotheses."""
    law = law_of(measure, dim, cov, scale)
    head = head_of(law, horizon, A, V)
    sizes = whole_numbers(n)
    x = torch.zeros(head.query_dim, dtype=torch.float64)
    x[0] = as_positive(query_radius, "--query-radius")
    found: list[Bound] = [
        bounds.mean_square(head, law, x, sizes),
        bounds.averaged(head, law, sizes),
        bounds.fixed_query(head, law, x, sizes, delta),
        bounds.uniform(head, law, query_radius, sizes, delta),
    ]
    if as_json:
        print_json({"n": sizes, "bounds": [one.to_dict() for one in found]})
        return
    rows = [
        (one.name, one.kind, *(f"{value:.3g}" for value in one.value.flatten().tolist())) for one in found
    ]
    out.print(table(f"{law!r}", ["bound", "kind", *(f"n = {size:,}" for size in sizes)], rows))
    for one in found:
        out.print(f"[bold]{one.name}[/]: {one.formula}", highlight=False)
