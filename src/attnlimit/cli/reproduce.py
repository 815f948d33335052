"""attnlimit reproduce: a published result, or one of ours, with one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

import attnlimit as al
from attnlimit.cli.common import AsJson, err, folder_out, out, print_json, progress, time_of
from attnlimit.numerics.words import counted

if TYPE_CHECKING:
    from attnlimit.reproduce import Prepared, Reproduced, Reproduction, Verdict

COLOURS = {"agrees": "green", "differs": "red", "cannot tell": "yellow"}


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|all", help="Which result; --list names them.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, in under a minute.")] = False,
    folder: Annotated[Path | None, folder_out("Where to write (default: attnlimit-out/reproduce).")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: one a core; 1 for --quick).")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the results and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a result of the papers: run it, draw it, and say whether it agrees.

    Says first how long it will take; a run that was stopped goes on where it was.
    Exit code: 0 it ran, whatever the verdict; 2 it could not run; 130 stopped.
    """
    if listed or name is None:
        _list([al.reproduce.find(one) for one in al.reproduce.names()], as_json)
        return
    chosen = al.reproduce.names() if name == "all" else (al.reproduce.find(name).name,)
    records = []
    for one in chosen:
        ready = _estimated(
            al.reproduce.prepare(one, quick=quick, workers=workers, out=folder or al.reproduce.OUT)
        )
        try:
            with progress(one) as step:
                done = al.reproduce.run(ready, progress=lambda now: step(now.done, now.total))
        except al.reproduce.Interrupted as stopped:
            err.print(f"{stopped} The same command goes on from there.")
            raise typer.Exit(130) from stopped
        records.append(done.record.to_dict())
        if not as_json:
            _say(done)
    if as_json:
        print_json(records[0] if name != "all" else {"results": records})


def _list(found: list[Reproduction], as_json: bool) -> None:
    if as_json:
        rows = [
            {"name": one.name, "title": one.title, "claim": one.claim, "source": one.source} for one in found
        ]
        print_json({"results": rows})
        return
    grid = Table(box=None, header_style="bold", pad_edge=False)
    grid.add_column("name", no_wrap=True)
    grid.add_column("what")
    for one in found:
        grid.add_row(one.name, one.title)
    out.print(grid)
    text = "attnlimit reproduce NAME runs one of them, all runs them all; --quick for a small version."
    out.print(text)


def _estimated(ready: Prepared) -> Prepared:
    """What it is and how long it will take, on standard error, before it starts."""
    say = f"{ready.result.name}: {ready.result.title}"
    err.print(say, style="bold")
    if ready.quick:
        err.print("Estimated time: under a minute (quick size).")
        return ready
    ready = ready.estimated()
    assert ready.cost is not None
    cost, time = ready.cost, time_of(ready.cost)
    if cost.done >= cost.tasks:
        time = f"{time} more" if cost.likely_seconds else "none, it is all there"
    size = f"{counted(cost.points, 'point')}, {counted(cost.tasks, 'task')}{' or more' * (cost.most_tasks > cost.tasks)}"
    text = f"Estimated time on {counted(ready.workers, 'core')}: {time} ({size})."
    err.print(text)
    return ready


def _say(done: Reproduced) -> None:
    """The verdicts in plain words, and where the files are."""
    grid = Table(title=done.record.title, title_justify="left", box=None, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for one in done.verdicts:
        expected = f"{one.relation} {al.reproduce.plain(one.predicted)}".strip()
        numbers = f"predicted {expected}, measured {al.reproduce.plain(one.measured)}{_interval(one)}"
        outcome = Text(one.outcome.value, COLOURS[one.outcome.value])
        grid.add_row(outcome, Text.assemble(one.claim, "\n", (numbers, "dim")))
    out.print(grid)
    for text in done.record.summary:
        out.print(text)
    names = ", ".join(path.name for path in done.files)
    out.print(f"Files in {done.folder}: {names}")


def _interval(one: Verdict) -> str:
    return "" if one.interval is None else f" (95 %: {one.interval[0]:.3g} to {one.interval[1]:.3g})"
