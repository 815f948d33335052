"""attnlimit bound: what can be proved for n tokens."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import attnlimit as al
from attnlimit.cli.common import AsJson, Sizes, out, print_json, table, whole_numbers
from attnlimit.cli.law_options import of_law
from attnlimit.errors import HypothesisFailed, LimitDoesNotExist

if TYPE_CHECKING:
    from attnlimit.bounds import Bound


@of_law("sphere", 3)
def bound(
    law: al.Measure,
    head: al.Head,
    n: Sizes = "1e2,1e4,1e6",
    query_radius: Annotated[float, typer.Option(help="Queries have norm up to this.")] = 1.0,
    delta: Annotated[
        float, typer.Option(help="Probability with which a high-probability bound may fail.")
    ] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Proved upper bounds on the error of n-token attention, with explicit constants and their hypotheses."""
    import torch

    from attnlimit.inputs import as_positive

    sizes = whole_numbers(n)
    x = torch.zeros(head.query_dim, dtype=torch.float64)
    x[0] = as_positive(query_radius, "--query-radius")
    known = {"head": head, "law": law, "x": x, "radius": query_radius, "n": sizes, "delta": delta}
    found, refused = _bounds(known)
    if as_json:
        print_json({"n": sizes, "bounds": [one.to_dict() for one in found], "refused": refused})
        return
    rows = [
        (one.name, one.kind, *(f"{value:.3g}" for value in one.value.flatten().tolist())) for one in found
    ]
    out.print(table(f"{law!r}", ["bound", "kind", *(f"n = {size:,}" for size in sizes)], rows))
    for one in found:
        out.print(Text.assemble((one.name, "bold"), f": {one.formula}"))
    for name, why in refused.items():
        out.print(Text.assemble((name, "bold"), f" is refused: {why}"))


def _bounds(known: Mapping[str, object]) -> tuple[list[Bound], dict[str, str]]:
    """Every bound that asks for no more than is known (a sample is not), and why those are refused whose hypotheses
    fail; when all are, the first of them says so."""
    found: list[Bound] = []
    refused: dict[str, HypothesisFailed | LimitDoesNotExist] = {}
    for name, function in al.bounds.all_bounds().items():
        asked = signature(function).parameters.values()
        if any(one.default is Parameter.empty and one.name not in known for one in asked):
            continue
        try:
            found.append(function(**{one.name: known[one.name] for one in asked if one.name in known}))
        except (HypothesisFailed, LimitDoesNotExist) as problem:
            refused[name] = problem
    if not found:
        raise next(iter(refused.values()))
    return found, {name: str(problem) for name, problem in refused.items()}
