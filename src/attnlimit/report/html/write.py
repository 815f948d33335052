"""The report of a run's folder."""

from __future__ import annotations

import json
from pathlib import Path

from attnlimit.files.records import write_text
from attnlimit.report.html.other import find_record, other
from attnlimit.report.html.page import Page, page


def write_report(folder: str | Path, file: str | Path | None = None) -> Path:
    """Write the report of the run in `folder`, by default as report.html beside its files."""
    folder = Path(folder)
    target = (
        Path(file) if file is not None else (folder if folder.is_dir() else folder.parent) / "report.html"
    )
    return write_text(target, page(report_data(folder)))


def report_data(folder: Path) -> Page:
    """The page of whatever kind of run the folder holds."""
    if (folder / "store.sqlite").is_file():
        from attnlimit.report.html.study import study

        return study(folder)
    path = find_record(folder) if folder.is_dir() else folder
    if path is not None and path.is_file() and not _is_analysis(path):
        return other(folder if folder.is_dir() else folder.parent, path)
    from attnlimit.models.analyse.run import Run
    from attnlimit.report.html.analysis import analysis

    return analysis(Run.load(folder), str(folder))


def _is_analysis(path: Path) -> bool:
    """Of a model, by name and schema; a damaged run.json is one, so that reading it says what is wrong."""
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
    except (ValueError, KeyError, TypeError):
        return path.name == "run.json"
    return str(schema).startswith("attnlimit.run/")
