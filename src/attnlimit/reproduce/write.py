"""What a reproduction leaves behind: figure, table, verdicts, report. All can be made again from its runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnlimit.errors import MissingExtra
from attnlimit.report.html.other import other
from attnlimit.report.html.page import page
from attnlimit.report.style import save
from attnlimit.reproduce.result import Outcome, Reproduction, Runs, Verdict
from attnlimit.studies.machine import versions
from attnlimit.studies.tables import replacing

SCHEMA = "attnlimit.reproduce/1"
Rows = list[dict[str, Any]]


def write(
    folder: Path, result: Reproduction, runs: Runs, verdicts: Sequence[Verdict], quick: bool
) -> tuple[dict[str, Any], list[Path]]:
    """The record and the files: figure.png and .pdf, table.parquet and .csv, verdict.json, report.html."""
    record = describe(result, runs, verdicts, quick)
    written = []
    try:
        figure = result.figure(runs)
        for ending in ("png", "pdf"):
            written.append(save(figure, folder / f"figure.{ending}"))
    except MissingExtra as missing:
        record["no_figure"] = str(missing)
    rows = result.table(runs)
    written += [_new(folder / "table.parquet", rows, _parquet), _new(folder / "table.csv", rows, _csv)]
    written.append(_new(folder / "verdict.json", record, _json))
    with replacing(folder / "report.html") as new:
        new.write_text(page(_report(folder, verdicts)), encoding="utf-8")
    return record, [*written, folder / "report.html"]


def _report(folder: Path, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The data of the page: verdicts without their notes, which the text above has."""
    data = other(folder, folder / "verdict.json")
    shown = [{"verdict": one.outcome.value, **one.to_dict()} for one in verdicts]
    names = ("verdict", "claim", "predicted", "measured", "low", "high")
    rows = [[one[name] for name in names] for one in shown]
    columns = [*names[:4], "95 % from", "to"]
    return {**data, "tables": [{"title": "Verdicts", "columns": columns, "rows": rows}]}


def describe(result: Reproduction, runs: Runs, verdicts: Sequence[Verdict], quick: bool) -> dict[str, Any]:
    """What verdict.json holds."""
    told = [f"Claim: {result.claim}", words(verdicts)]
    if quick:
        told.append("A quick run: fewer points and replicates than the paper-size one.")
    told += [*result.notes, *(result.said(runs) if result.said is not None else ())]
    told += list(dict.fromkeys(verdict.note for verdict in verdicts if verdict.note))
    return {
        "schema": SCHEMA,
        "name": result.name,
        "title": result.title,
        "claim": result.claim,
        "source": result.source,
        "size": "quick" if quick else "paper",
        "summary": told,
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "studies": [
            {"study": name, "kind": one["study"]["kind"], "points": len(one["points"]), "tasks": one["total"], "seed": one["study"]["seed"]}
            for name, one in runs.items()
        ],
        "versions": versions(),
    }  # fmt: skip


def words(verdicts: Sequence[Verdict]) -> str:
    """How many claims came out how.

    >>> words([Verdict("a", 1.0, 1.0, None, Outcome.AGREES), Verdict("b", 1.0, 2.0, None, Outcome.DIFFERS)])
    'Of 2 comparisons, 1 agrees, 1 differs.'
    """
    if not verdicts:
        return "Nothing was compared."
    counts = [(sum(one.outcome is outcome for one in verdicts), outcome) for outcome in Outcome]
    return f"Of {len(verdicts)} comparisons, {', '.join(_counted(*pair) for pair in counts if pair[0])}."


def _counted(count: int, outcome: Outcome) -> str:
    verb = {Outcome.AGREES: "agree", Outcome.DIFFERS: "differ", Outcome.CANNOT_TELL: "cannot be told"}[
        outcome
    ]
    return f"{count} {verb}{'s' if count == 1 and outcome is not Outcome.CANNOT_TELL else ''}"


def _new(path: Path, data: Any, how: Callable[[Path, Any], object]) -> Path:
    with replacing(path) as new:
        how(new, data)
    return path


def _json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _csv(path: Path, rows: Rows) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _columns(rows))
        writer.writeheader()
        writer.writerows(rows)


def _parquet(path: Path, rows: Rows) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [row.get(name) for row in rows] for name in _columns(rows)}
    pq.write_table(pa.table({name: _same_type(cells) for name, cells in columns.items()}), path)


def _columns(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _same_type(cells: list[Any]) -> list[Any]:
    """Columns with words in them are text; whole numbers among others become floats."""
    types = {type(cell) for cell in cells} - {type(None)}
    if types == {int, float}:
        return [None if cell is None else float(cell) for cell in cells]
    return cells if len(types) < 2 else [None if cell is None else str(cell) for cell in cells]
