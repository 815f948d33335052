"""attnlimit report: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnlimit.cli.common import file_out, out


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    file: Annotated[Path | None, file_out("HTML file to write (default: report.html in the folder).")] = None,
) -> None:
    """The run as one HTML file: opens in any browser, needs no network."""
    if (run / "verdict.json").is_file():
        from attnlimit.reproduce.write import write_report  # a layer of its own, above the report's
    else:
        from attnlimit.report.html import write_report

    written = write_report(run, file)
    out.print(
        f"Report: {written} ({written.stat().st_size / 1e6:.1f} MB). Open it in a browser.",
    )
