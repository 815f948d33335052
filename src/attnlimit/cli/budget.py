"""attnlimit budget: keys for every head, as a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import AsJson, file_out, out, print_json, share


def budget(
    run: Annotated[Path, typer.Argument(help="Folder that attnlimit analyze wrote.")],
    kl: Annotated[
        float | None, typer.Option(help="Nats a token (a classifier: a text) that the answer may lose: 0.01.")
    ] = None,
    perplexity: Annotated[str | None, typer.Option(help="Growth of the perplexity allowed: 1%.")] = None,
    change: Annotated[
        float | None, typer.Option(help="Squared change of an encoder's embedding allowed: 0.01.")
    ] = None,
    keys: Annotated[str | None, typer.Option(help="Share of all keys to be read: 10%.")] = None,
    total: Annotated[
        int | None, typer.Option(help="Keys that a query reads in all heads together, to share out.")
    ] = None,
    rel_error: Annotated[
        float | None, typer.Option(help="Error allowed in each head; the run's, if no aim is given.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="What --keys and --total make least: answer (default), output, head; or uniform."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="best; for the answer also head (the same for all queries of a head) or same (for all heads); for --rel-error also sampled or kept."
        ),
    ] = "best",
    file: Annotated[Path, file_out("Budget file to write.")] = Path("budgets.json"),
    as_json: AsJson = False,
) -> None:
    """Keys for every head: the fewest for an error of the model's answer, or the best use of a number of keys."""
    from attnlimit.inputs import as_count  # needs torch

    if total is not None:
        as_count(total, "--total")
    found = al.Run.load(run)
    aims = {"rel_error": rel_error, "kl": kl, "change": change, "total": total}
    aims |= {
        name: share(text, name)
        for name, text in (("perplexity", perplexity), ("keys", keys))
        if text is not None
    }
    if all(value is None for value in aims.values()):
        aims["rel_error"] = found.facts.rel_error
    budgets = found.budgets(**aims, policy=policy, split=split)  # type: ignore[arg-type]
    budgets.save(file)
    if as_json:
        print_json(budgets.to_dict())
        return
    dense = sum(1 for one in budgets.entries if one.n is None)
    out.print(f"{budgets!r}")
    part = "" if budgets.share is None else f", {100 * budgets.share:.1f} % of full attention"
    kept = sum(1 for one in budgets.entries if one.n is not None and one.sampling.kept)
    out.print(
        f"Keys read by a query, all heads: {budgets.total:,.0f}{part}; of {len(budgets.entries)} heads {kept} keep some keys, "
        f"{dense} read all.",
    )
    if budgets.predicted is not None:
        growth = ""
        if budgets.predicted_kl is not None and found.facts.kind == "causal-lm":
            growth = f", so perplexity grows by about {100 * math.expm1(budgets.predicted_kl):.2g} %"
        out.print(
            f"Predicted error of the answer: {budgets.predicted}{growth}; texts of {budgets.tokens} tokens only.",
        )
    out.print(f"Budgets: {file}")
