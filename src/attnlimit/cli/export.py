"""attnlimit export: a run's table, summary and figures, made from its store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import file_out, out
from attnlimit.errors import InputError

FORMATS = ("parquet", "csv", "json", "figures")


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a study's run; it may still be running.")],
    form: Annotated[
        str, typer.Option("--format", help="parquet or csv (all rows), json (summary), figures, or all.")
    ] = "parquet",
    file: Annotated[Path | None, file_out("File to write (default: in the folder).")] = None,
) -> None:
    """Write what a study has found so far; the run itself is only read."""
    from attnlimit.cli.studies import written  # needs an extra

    if form not in (*FORMATS, "all"):
        raise InputError(f"--format must be one of {', '.join(FORMATS)} or all, got {form!r}.")
    if file is not None and form in ("figures", "all"):
        raise InputError(f"--out names one file, but {form} are several: leave it out.")
    with al.studies.open_run(run) as found:
        for one in FORMATS if form == "all" else (form,):
            for path in written(found, one, file):
                out.print(f"Written: {path}")
