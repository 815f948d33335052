"""attnlimit report: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import file_out, out


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    file: Annotated[Path | None, file_out("HTML file to write (default: report.html in the folder).")] = None,
) -> None:
    """The run as one HTML file: opens in any browser, needs no network."""
    # what `reproduce` wrote has a page of its own, of a layer above the report's
    write = al.reproduce.write_report if (run / "verdict.json").is_file() else al.write_report
    written = write(run, file)
    out.print(
        f"Report: {written} ({written.stat().st_size / 1e6:.1f} MB). Open it in a browser.",
    )
