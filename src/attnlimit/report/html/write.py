"""The report of a run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnlimit.errors import InputError
from attnlimit.report.html.page import page


def write_report(folder: str | Path, file: str | Path | None = None) -> Path:
    """Write the report of the run in `folder`, by default as report.html beside its files."""
    folder = Path(folder)
    target = (
        Path(file) if file is not None else (folder if folder.is_dir() else folder.parent) / "report.html"
    )
    text = page(report_data(folder))
    if not target.parent.is_dir():
        raise InputError(f"There is no folder {target.parent} to write {target.name} in: make it first.")
    if target.is_dir():
        raise InputError(f"{target} is a folder: give the name of a file to write.")
    target.write_text(text, encoding="utf-8")
    return target


def report_data(folder: Path) -> dict[str, Any]:
    """The data of `page` for whatever kind of run the folder holds."""
    from attnlimit.models.run import Run
    from attnlimit.report.html.analysis import analysis

    return analysis(Run.load(folder), str(folder))
