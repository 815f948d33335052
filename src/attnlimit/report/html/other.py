"""What the page shows of a folder of any other run: its record, its figures, its tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnlimit.errors import InputError
from attnlimit.report.html.icl import icl_page
from attnlimit.report.html.page import Page, Picture, Sheet

RECORDS = ("run.json", "summary.json", "result.json", "icl.json", "verdict.json")
KINDS = {".svg": "svg+xml", ".png": "png"}


def other(folder: Path, path: Path) -> Page:
    """The page of the JSON record at `path` and the figures beside it.

    Of the record: `title`, `summary` (a text or several), single numbers and words as facts, lists of objects as
    tables, and `method`, `seed` and `versions` for the foot.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise InputError(f"{path} is damaged ({problem}): run it again.") from problem
    if not isinstance(record, dict):
        raise InputError(f"{path} is no record of a run: it must be a JSON object.")
    if {"risks", "rates", "methods"} <= set(record):
        return icl_page(record, folder, [*_figures(folder)])
    told = record.get("summary", ())
    name = str(record.get("title") or record.get("name") or folder.resolve().name)
    return Page(
        title=f"{name}, attnlimit",
        eyebrow=f"attnlimit {str(record.get('schema', 'attnlimit.run')).removeprefix('attnlimit.').partition('/')[0]}",
        heading=name,
        summary=[str(one) for one in ([told] if isinstance(told, str) else told)]
        if isinstance(told, str | list)
        else [],
        figures=[*_figures(folder)],
        tables=[_table(key, rows) for key, rows in record.items() if _is_table(rows)],
        methods=_facts(record),
    )


def find_record(folder: Path) -> Path | None:
    """The record of a run's folder, if it has one."""
    return next((folder / name for name in RECORDS if (folder / name).is_file()), None)


def _figures(folder: Path) -> Iterable[Picture]:
    """Every figure once: the SVG of it rather than the PNG."""
    found: dict[str, Path] = {}
    for place in (folder, folder / "figures"):
        for kind in (".png", ".svg"):
            found |= {path.stem: path for path in sorted(place.glob(f"*{kind}"))}
    for name, path in found.items():
        title = name.replace("-", " ").replace("_", " ").capitalize()
        yield Picture(title, path.read_bytes(), KINDS[path.suffix])


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _table(key: str, rows: list[dict[str, Any]]) -> Sheet:
    """The single numbers and words of every row."""
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if _is_single(value)))
    shown = [[row[c] if _is_single(row.get(c)) else None for c in columns] for row in rows]
    return Sheet(key.replace("_", " ").capitalize(), [name.replace("_", " ") for name in columns], shown)


def _is_single(value: object) -> bool:
    return isinstance(value, int | float | str)


def _facts(record: Mapping[str, Any]) -> list[tuple[str, object]]:
    skip = ("title", "name", "summary", "schema", "versions")
    facts = [
        (key.replace("_", " ").capitalize(), value)
        for key, value in record.items()
        if key not in skip and _is_single(value)
    ]
    versions = record.get("versions")
    if isinstance(versions, dict):
        facts.append(("Versions", ", ".join(f"{name} {text}" for name, text in versions.items())))
    return facts
