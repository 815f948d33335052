"""attnlimit budget: keys for every head, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnlimit.cli.common import AsJson, guarded, out, print_json


@guarded
def budget(
    run: Annotated[Path, typer.Argument(help="Folder that attnlimit analyze wrote.")],
    rel_error: Annotated[float | None, typer.Option(help="Error allowed in each head.")] = None,
    total: Annotated[
        int | None, typer.Option(help="Keys that a query reads in all heads together, to share out.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="How a total is shared: output (least error of the layers), head or uniform.")
    ] = "output",
    policy: Annotated[str, typer.Option(help="best, sampled or kept.")] = "best",
    file: Annotated[Path, typer.Option("--out", help="Budget file to write.")] = Path("budgets.json"),
    as_json: AsJson = False,
) -> None:
    """Keys for every head: the least for an error, or the best split of a total."""
    from attnlimit.models.analyse.run import Run

    found = Run.load(run)
    if rel_error is None and total is None:
        rel_error = found.facts.rel_error
    budgets = found.budgets(rel_error, policy=policy, total=total, split=split)
    budgets.save(file)
    if as_json:
        print_json(budgets.to_dict())
        return
    dense = sum(1 for one in budgets.entries if one.n is None)
    out.print(f"{budgets!r}")
    share = "" if budgets.share is None else f", {100 * budgets.share:.1f} % of full attention"
    kept = sum(1 for one in budgets.entries if one.n is not None and one.sampling.kept)
    out.print(
        f"Keys read by a query, all heads: {budgets.total:,.0f}{share}; of {len(budgets.entries)} heads {kept} keep some keys, "
        f"{dense} read all.",
    )
    out.print(f"Budgets: {file}")
