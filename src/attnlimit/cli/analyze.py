"""attnlimit analyze: how many keys each head of a model needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from attnlimit.cli.common import AsJson, err, guarded, out, print_json, progress
from attnlimit.numerics.counts import short_count
from attnlimit.numerics.words import counted

if TYPE_CHECKING:
    from attnlimit.models.analyse.run import Run

SHADES = ("green", "yellow", "dark_orange", "red")


@guarded
def analyze(
    model: Annotated[
        str | None, typer.Argument(help="Hub id, folder or .gguf file (default: the packaged BERT).")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Text: files, .jsonl or - (default: Wikipedia articles).")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of a passage.")] = None,
    queries: Annotated[int, typer.Option(help="Random queries of each head.")] = 64,
    population: Annotated[
        str, typer.Option(help="context: keys a query sees; corpus: keys of all passages pooled.")
    ] = "context",
    passages: Annotated[int | None, typer.Option(help="Passages read.")] = None,
    rel_error: Annotated[float, typer.Option(help="Error allowed, relative to the head's outputs.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of the choice of queries.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, …")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the run is written.")] = Path(
        "attnlimit-out/run"
    ),
    as_json: AsJson = False,
) -> None:
    """How many keys every head of a model needs on a text: exact, per layer and head."""
    from attnlimit.models.analyse.analyze import analyze as analyze_model
    from attnlimit.models.see.load import load, packaged_bert
    from attnlimit.models.see.text import texts
    from attnlimit.report.html import write_report

    loaded = load(model or packaged_bert(), device=device, dtype=dtype)
    given = texts(text)
    with progress("layers") as step:
        run = analyze_model(
            loaded,
            given,
            rel_error=rel_error,
            queries=queries,
            tokens=tokens,
            population=population,
            passages=passages,
            seed=seed,
            progress=step,
            before=lambda memory: err.print(f"Memory: {memory}.", highlight=False),
        )
    run.save(folder)
    figures = _figures(run, folder)
    report = write_report(folder)
    if as_json:
        print_json(run.to_dict())
        return
    _show(run)
    out.print(
        f"Run: {folder}/run.json, heads.parquet{', ' if figures else ''}{', '.join(figures)}", highlight=False
    )
    out.print(f"Report: {report} (open it in a browser)", highlight=False)


def _figures(run: Run, folder: Path) -> list[str]:
    from attnlimit.errors import MissingExtra
    from attnlimit.report.figures.heads import curves, heat_map, slopes
    from attnlimit.report.figures.style import save

    try:
        for name, draw in (("heatmap", heat_map), ("curves", curves), ("slopes", slopes)):
            save(draw(run), folder / f"{name}.png")
    except MissingExtra as missing:
        err.print(f"No figures: {missing}", highlight=False)
        return []
    return ["heatmap.png", "curves.png", "slopes.png"]


def _show(run: Run) -> None:
    """Keys that 90 % of the queries need, a row a layer, and the heads at both ends in words."""
    facts, need = run.facts, run.grid("n_p90")
    visible = run.grid("visible_keys")
    percent = f"{100 * float(facts['rel_error']):g} %"
    title = f"Keys for {percent} error in 90 % of queries: {facts['model']}, {facts['population']} of {facts['tokens']} tokens"
    grid = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    grid.add_column("layer", justify="right")
    for head in range(need.shape[1]):
        grid.add_column(f"h{head}", justify="right")
    for layer in range(need.shape[0]):
        cells = [_cell(float(need[layer, h]), float(visible[layer, h])) for h in range(need.shape[1])]
        grid.add_row(str(layer), *cells)
    out.print(grid)
    enough = sum(1 for one in run.heads if one.n_p90 is not None and one.n_p90 < one.visible_keys)
    out.print(
        f"{enough} of {len(run.heads)} heads reach {percent} with fewer keys than there are; – needs them all.",
        highlight=False,
    )
    by_need = sorted(run.heads, key=lambda one: (one.n_p90 is None, one.n_p90 or 0, -one.effective_keys[1]))
    for one in (*by_need[:3], *by_need[-3:]):
        out.print(
            f"  layer {one.layer} head {one.head}: {one.phase} (horizon {one.horizon:.2f}, effective keys {one.effective_keys[1]:.1f})",
            highlight=False,
        )
    out.print(
        f"Method: {facts['method']}; {facts['queries']} queries, {counted(facts['passages'], 'passage')}, seed {facts['seed']}.",
        highlight=False,
    )


def _cell(need: float, visible: float) -> str:
    if not need < float("inf"):
        return "[red]–[/]"
    shade = SHADES[sum(need > share * visible for share in (0.1, 0.3, 1.0))]
    return f"[{shade}]{short_count(need)}[/]"
