"""attnlimit analyze: how many keys each head of a model needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text as Words

import attnlimit as al
from attnlimit.cli.common import AsJson, err, folder_out, out, print_json, progress, table
from attnlimit.cli.model_options import Device, Dtype, Model, Text, loaded_model
from attnlimit.errors import InputError, MissingExtra
from attnlimit.numerics.words import counted
from attnlimit.report.figures.style import save

if TYPE_CHECKING:
    from attnlimit.models.analyse.heads import HeadReport
    from attnlimit.models.budget.needed import Needed

SHADES = ("green", "yellow", "dark_orange", "red")


def analyze(
    model: Model = None,
    text: Text = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of a passage.")] = None,
    queries: Annotated[int, typer.Option(help="Random queries of each head.")] = 64,
    population: Annotated[
        str, typer.Option(help="context: keys a query sees; corpus: keys of all passages pooled.")
    ] = "context",
    passages: Annotated[int | None, typer.Option(help="Passages read.")] = None,
    rel_error: Annotated[float, typer.Option(help="Error allowed, relative to the head's outputs.")] = 0.05,
    answer: Annotated[
        str, typer.Option(help="on: also what each head's error does to the model's answer; off: heads only.")
    ] = "on",
    keys_by: Annotated[
        str,
        typer.Option(
            help="head: every query head reads its own keys; group: those with one key head the same."
        ),
    ] = "head",
    seed: Annotated[int, typer.Option(help="Seed of the choice of queries.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
    folder: Annotated[Path, folder_out("Where the run is written.")] = Path("attnlimit-out/run"),
    as_json: AsJson = False,
) -> None:
    """How many keys every head of a model needs on a text: exact, per layer and head."""
    from attnlimit.files.lock import locked

    if answer not in ("on", "off"):
        raise InputError(f"--answer must be on or off, got {answer!r}.")
    if keys_by not in ("head", "group"):
        raise InputError(f"--keys-by must be head or group, got {keys_by!r}.")
    reading = al.Reading(
        tokens=tokens,
        passages=passages,
        queries=queries,
        population=cast(Any, population),
        answer=2 if answer == "on" else 0,
        grouped=keys_by == "group",
        seed=seed,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        loaded = loaded_model(model, device, dtype)
        given = None if text is None else al.documents(text)
        with progress("steps") as step:
            run = al.analyze(
                loaded,
                given,
                rel_error=rel_error,
                reading=reading,
                progress=step,
                before=lambda memory: err.print(f"Memory: {memory}."),
                folder=folder,
                note=err.print,
            )
        run.save(folder)
        figures = _figures(run, folder)
        report = al.write_report(folder)
    if as_json:
        print_json(run.to_dict())
        return
    _show(run)
    out.print(f"Run: {folder}/run.json, heads.parquet{', ' if figures else ''}{', '.join(figures)}")
    out.print(f"Report: {report} (open it in a browser)")


def _figures(run: al.Run, folder: Path) -> list[str]:
    from attnlimit.report.figures.heads import answer_map, curves, heat_map, slopes
    from attnlimit.report.html.analysis import same_answer

    drawn = {"heatmap": heat_map, "curves": curves, "slopes": slopes}
    if run.answer is not None:
        drawn["answer"] = lambda run: answer_map(run, same_answer(run))
    try:
        for name, draw in drawn.items():
            save(draw(run), folder / f"{name}.png")
    except MissingExtra as missing:
        err.print(f"No figures: {missing}")
        return []
    return [f"{name}.png" for name in drawn]


def _show(run: al.Run) -> None:
    """Keys that a query reads, a row a layer, and the heads at both ends in words."""
    facts, (layers, heads) = run.facts, run.shape
    need = {(one.layer, one.head): one.needed(facts.rel_error) for one in run.heads}
    visible = {(one.layer, one.head): one.visible_keys for one in run.heads}
    percent = f"{100 * facts.rel_error:g} %"
    title = (
        f"Keys a query reads for {percent} error: {facts.model}, {facts.population} of {facts.tokens} tokens"
    )
    rows = []
    for layer in range(layers):
        places = [(layer, head) for head in range(heads)]
        rows.append([str(layer), *(_cell(need[at], visible[at]) if at in need else "" for at in places)])
    out.print(table(title, ["layer", *(f"h{head}" for head in range(heads))], rows))
    total, seen = sum(one.keys for one in need.values()), sum(visible.values())
    enough = sum(not one.all for one in need.values())
    lines = [
        "The cheaper way of each head: all keys drawn at random, or (+) some always kept and the others drawn:",
        f"{run.heads[0].ways[-1].sampling}. all: every key that it sees. Error: rms over queries.",
        f"{enough} of {len(need)} heads reach {percent} with fewer keys than they see, {100 * total / seen:.1f} % of the "
        "keys in all heads together.",
        "Drawn at random only, the heads that need fewest and most (in brackets: about 95 % of effective keys, over other keys of the same law):",
    ]
    by_need = sorted(
        run.heads, key=lambda one: (one.needed(facts.rel_error, "sampled").keys, -one.effective_keys[1])
    )
    for one in (*by_need[:3], *by_need[-3:]):
        lines.append(
            f"  layer {one.layer} head {one.head}: {one.phase(facts.rel_error)} (horizon {one.horizon:.2f}, effective keys "
            f"{_effective(one)})"
        )
    passages = counted(facts.passages, "passage")
    lines.append(f"Method: {facts.method}; {facts.queries} queries, {passages}, seed {facts.seed}.")
    out.print("\n".join(lines))
    if run.answer is not None:
        _show_answer(run)


def _effective(one: HeadReport) -> str:
    """Effective keys with their interval."""
    ends = one.effective_interval
    return f"{one.effective_keys[1]:.1f}" + ("" if ends is None else f" [{ends[0]:.1f}, {ends[1]:.1f}]")


def _show_answer(run: al.Run) -> None:
    """Keys for some errors of the model's answer."""
    from attnlimit.report.html.analysis import answer_table, answer_words

    columns, rows = answer_table(run)
    out.print(table(f"What the model's answer needs ({run.facts.answer})", columns, rows))
    option = "--change" if run.facts.kind == "encoder" else "--kl"
    out.print(f"{answer_words(run)} Budgets for it: attnlimit budget RUN {option} 0.01")


def _cell(need: Needed, visible: float) -> Words:
    shade = SHADES[3 if need.all else sum(need.keys > share * visible for share in (0.1, 0.3))]
    return Words(str(need), shade)
