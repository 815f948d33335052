"""attnlimit runs: the runs of studies, and where each stands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import attnlimit as al
from attnlimit.cli.common import AsJson, err, out, print_json, table
from attnlimit.errors import AttnlimitError, InputError

COLOURS = {"running": "cyan", "finished": "green", "incomplete": "yellow", "failed": "red"}


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, with all folders below.")] = Path(
        "attnlimit-out"
    ),
    as_json: AsJson = False,
) -> None:
    """List the runs of studies: running, finished, incomplete or failed."""
    states, broken = [], []
    for path in al.studies.find_runs(folder):
        try:
            with al.studies.open_run(path) as run:
                states.append(run.state)
        except AttnlimitError as problem:
            broken.append({"folder": str(path), "problem": str(problem)})
    if as_json:
        print_json({"runs": [state.to_dict() for state in states], "unreadable": broken})
        return
    if not states and not broken:
        raise InputError(f"There is no run of a study in {folder}: `attnlimit sweep SPEC` makes one.")
    rows = [
        (
            str(state.folder.relative_to(folder)),
            state.kind,
            Text.assemble((state.state, COLOURS[state.state]), f" ({state.writer})" if state.writer else ""),
            f"{state.done:,}/{state.total:,}",
            f"{state.failed:,}" if state.failed else "",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(state.updated)) if state.updated else "–",
        )
        for state in states
    ]
    heading = ["run", "kind", "state", "tasks", "failed", "last result"]
    out.print(table(f"Runs in {folder}", heading, rows))
    for one in broken:
        err.print(f"{one['folder']}: {one['problem']}")
