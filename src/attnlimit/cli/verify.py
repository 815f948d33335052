"""attnlimit verify: do budgets hold on the model's own task?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnlimit.cli.common import AsJson, guarded, out, print_json, progress, table

if TYPE_CHECKING:
    from attnlimit.models.judge.intervals import Estimate
    from attnlimit.models.judge.verify import Verification


@guarded
def verify(
    model: Annotated[
        str | None, typer.Argument(help="Hub id, folder or .gguf file (default: the packaged BERT).")
    ] = None,
    budgets: Annotated[Path, typer.Option(help="File that attnlimit budget wrote.")] = Path("budgets.json"),
    text: Annotated[
        list[str] | None, typer.Option(help="Text: files, .jsonl or - (default: Wikipedia articles).")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sampled runs, with seeds 0, 1, ….")] = 3,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of an example (default: as the budgets have it).")
    ] = None,
    windows: Annotated[int, typer.Option(help="Windows of text on which heads and layers are compared.")] = 8,
    examples: Annotated[
        int | None, typer.Option(help="Examples of the task (default: 32 texts, 64 windows or all labels).")
    ] = None,
    slack: Annotated[
        float, typer.Option(help="How far a head's error may surely be above the predicted one.")
    ] = 0.1,
    drop: Annotated[
        float, typer.Option(help="Loss allowed: accuracy lost, or relative growth of perplexity.")
    ] = 0.02,
    per_query: Annotated[
        bool,
        typer.Option("--per-query/--shared", help="Keys of each query, or one order for the whole text."),
    ] = True,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, …")] = None,
    as_json: AsJson = False,
) -> None:
    """Full model against the model with budgets: heads, layers, logits, task, and a verdict.

    Leaves with 0 when the budgets hold, 1 when they fail, 2 for bad input.
    """
    from attnlimit.models.budget.budgets import Budgets
    from attnlimit.models.judge.trial import Trial
    from attnlimit.models.judge.verify import Allowed
    from attnlimit.models.judge.verify import verify as verify_model
    from attnlimit.models.see.load import load, packaged_bert
    from attnlimit.models.see.text import documents

    allowed = Allowed(slack=slack, drop=drop)
    given = documents(text or None)
    found = Budgets.load(budgets)
    loaded = load(model or packaged_bert(), device=device, dtype=dtype)
    with progress("percent") as step:
        result = verify_model(
            loaded,
            found,
            given,
            windows=windows,
            trial=Trial(tokens=tokens, examples=examples, seeds=range(seeds), per_query=per_query),
            allowed=allowed,
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
    from attnlimit.models.judge.verify import FLOOR

    ratio = result.measured.clamp_min(FLOOR) / result.predicted.clamp_min(FLOOR)
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
                str(int(result.above[layer].sum())),
                _short(result.hidden[layer]) if len(result.hidden) == len(result.measured) else "–",
            )
        )
    columns = ["layer", "predicted", "measured", "ratio of heads", "above", "hidden states"]
    title = f"Relative rms errors of heads (mean) and hidden states ({result.level:.0%} intervals)"
    out.print(table(title, columns, rows))
    lines = [
        f"{result.full.name}: {result.full.value:.4g} with all keys, {result.sampled_value!r} sampled; loss "
        f"{result.drop!r} ({result.full.unit}).",
        f"Keys per query and head: {result.keys:.4g}, {result.share:.1%} of full attention. {result.windows} windows of "
        f"{result.tokens} tokens, {len(result.full.per_example)} examples, {len(result.seeds)} seeds.",
    ]
    if result.divergence is not None:
        logits = f"KL {result.divergence!r} nats per position, same first choice in {result.agreement!r}"
        lines.insert(0, f"Logits: {logits}.")
    out.print("\n".join(lines), highlight=False, markup=False)
    colour = "green" if result.holds else "red"
    out.print(result.verdict, style=f"bold {colour}", highlight=False, markup=False)


def _short(one: Estimate) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def _mean(values: list[float]) -> str:
    known = [value for value in values if value == value]
    return "–" if not known else f"{sum(known) / len(known):.4g}"
