"""attnlimit complexity: how many tokens are enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import AsJson, numbers, out, print_json, progress, table
from attnlimit.cli.law_options import of_law
from attnlimit.errors import InputError

if TYPE_CHECKING:
    from attnlimit.exact import Complexity

MOST = 1_000


@of_law()
def complexity(
    law: al.Measure,
    head: al.Head,
    rel_error: Annotated[
        str | None, typer.Option(help="Errors relative to the outputs' size: 0.05, or 0.01,0.05,0.1.")
    ] = None,
    abs_error: Annotated[str | None, typer.Option(help="Errors in the unit of the outputs.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Probability with which the first output at the query (1, 0, …) may err by more; else: rms over queries."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Least number of tokens n(ε) whose attention is within ε of the infinite-token limit (exact, to the token)."""
    if rel_error is not None and abs_error is not None:
        raise InputError("Give either --rel-error or --abs-error, not both.")
    name = "rel_error" if abs_error is None else "abs_error"
    given = rel_error if abs_error is None else abs_error
    wanted = numbers("0.05" if given is None else given, f"--{name.replace('_', '-')}", most=MOST)
    results = []
    with progress("errors") as step:
        for done, error in enumerate(wanted):
            step(done, len(wanted))
            results.append(_least(head, law, error, name == "rel_error", delta))
    if as_json:
        print_json(
            {"results": [{name: error, **one.to_dict()} for error, one in zip(wanted, results, strict=True)]}
        )
        return
    rows = [(f"{error:g}", one.target, str(one)) for error, one in zip(wanted, results, strict=True)]
    out.print(
        table(f"{law!r}, horizon {al.horizon(head, law):.3g}", [name, "error allowed", "tokens n(ε)"], rows)
    )
    what = (
        "rms over queries"
        if delta is None
        else f"of the first output at (1, 0, …), exceeded with probability {delta:g}"
    )
    out.print(f"Error: {what}; relative to {results[0].scale}. Method: {results[0].method}.")


def _least(head: al.Head, law: al.Measure, error: float, relative: bool, delta: float | None) -> Complexity:
    rel_error, abs_error = (error, None) if relative else (None, error)
    if delta is None:
        return al.sample_complexity(head, law, rel_error=rel_error, abs_error=abs_error)
    import torch

    query, first = (torch.eye(size, dtype=torch.float64)[:1] for size in (head.query_dim, head.V.shape[-2]))
    return al.sample_complexity(
        head.along(first[0]), law, rel_error=rel_error, abs_error=abs_error, queries=query, delta=delta
    )
