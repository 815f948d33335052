"""attnlimit verify: do budgets hold on the model's own task?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import AsJson, err, out, print_json, progress, table
from attnlimit.cli.model_options import (
    Device,
    Dtype,
    Examples,
    Model,
    PerQuery,
    Seeds,
    Text,
    loaded_model,
    with_interval,
)
from attnlimit.numerics.words import counted

if TYPE_CHECKING:
    from attnlimit.models.judge import Verification


def verify(
    model: Model = None,
    budgets: Annotated[Path, typer.Option(help="File that attnlimit budget wrote.")] = Path("budgets.json"),
    text: Text = None,
    seeds: Seeds = 3,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of an example (default: as the budgets have it).")
    ] = None,
    windows: Annotated[int, typer.Option(help="Windows of text on which heads and layers are compared.")] = 8,
    examples: Examples = None,
    slack: Annotated[
        float, typer.Option(help="How far a head's error may surely be above the predicted one.")
    ] = 0.1,
    drop: Annotated[
        float, typer.Option(help="Loss allowed: accuracy lost, or relative growth of perplexity.")
    ] = 0.02,
    needles: Annotated[
        bool, typer.Option("--needles", help="Also find needles in long texts (causal language models).")
    ] = False,
    per_query: PerQuery = True,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Full model against the model with budgets: heads, layers, logits, task, and a verdict.

    Leaves with 0 when the budgets hold, 1 when they fail, 2 for bad input.
    """
    from attnlimit.models.judge import NEEDLES

    allowed = al.Allowed(slack=slack, drop=drop)
    given = al.documents(text or None)
    found = al.Budgets.load(budgets)
    loaded = loaded_model(model, device, dtype)
    if other := loaded.unlike(found.model, found.weights):
        err.print(
            f"{budgets} was made for {other}, and this is {loaded.name}: budgets hold for the model they were made on."
        )
    with progress("percent") as step:
        result = al.verify(
            loaded,
            found,
            given,
            windows=windows,
            trial=al.Trial(tokens=tokens, examples=examples, seeds=range(seeds), per_query=per_query),
            allowed=allowed,
            needles=[task() for task in NEEDLES.values()] if needles else [],
            progress=step,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        _show(result)
    if not result.holds:
        raise typer.Exit(1)


def _show(result: Verification) -> None:
    """A row a layer, the logits, the task, the verdict."""
    ratio = result.ratio
    rows: list[tuple[object, ...]] = []
    for layer in range(len(result.measured)):
        known = ratio[layer][~ratio[layer].isnan() & ~ratio[layer].isinf()]
        spread = "–" if known.numel() == 0 else f"{float(known.min()):.2f} … {float(known.max()):.2f}"
        rows.append(
            (
                str(layer),
                _mean(result.predicted[layer].tolist()),
                _mean(result.measured[layer].tolist()),
                spread,
                "–" if known.numel() == 0 else str(int(result.above[layer].sum())),
                with_interval(result.hidden[layer]) if len(result.hidden) == len(result.measured) else "–",
            )
        )
    columns = ["layer", "predicted", "measured", "ratio of heads", "above", "hidden states"]
    title = f"Relative rms errors of heads (mean) and hidden states ({result.level:.0%} intervals)"
    out.print(table(title, columns, rows))
    has_share = result.key_head_share == result.key_head_share  # not in long texts
    by_key_head = f" ({result.key_head_share:.1%} by key head)" if has_share else ""
    lines = [
        f"{result.full.name}: {result.full.value:.4g} with all keys, {result.sampled_value!r} sampled; loss "
        f"{result.drop!r} ({result.full.unit}).",
        f"Keys per query and head: {result.keys:.4g}, {result.share:.1%} of full attention{by_key_head}. "
        f"{counted(result.windows, 'window')} of {result.tokens} tokens, {counted(len(result.full.per_example), 'example')}, "
        f"{counted(len(result.seeds), 'seed')}.",
    ]
    answer = f"Answer: {result.answer!r} {result.unit}"
    if result.answer_predicted is not None:
        answer += f", predicted {result.answer_predicted}"
    if result.agreement is not None:
        answer += f"; same first choice in {result.agreement!r}"
    lines.insert(0, answer + ".")
    out.print("\n".join(lines))
    _show_needles(result)
    colour = "green" if result.holds else "red"
    out.print(result.verdict, style=f"bold {colour}")


def _show_needles(result: Verification) -> None:
    """A row for each task that the full model solves, a line for each other."""
    rows: list[tuple[object, ...]] = [
        (
            one.full.name,
            f"{one.full.value:.2f}",
            with_interval(one.sampled_value, 2),
            with_interval(one.drop, 2),
        )
        for one in result.needles
        if one.sampled_value is not None and one.drop is not None
    ]
    if rows:
        out.print(table(f"Needles of {result.tokens} tokens", ["task", "all keys", "sampled", "loss"], rows))
    for one in result.needles:
        if not one.solved:
            out.print(f"{one.full.name}: {one.verdict}.")


def _mean(values: list[float]) -> str:
    known = [value for value in values if value == value]
    return "–" if not known else f"{sum(known) / len(known):.4g}"
