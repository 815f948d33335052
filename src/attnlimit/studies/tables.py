"""What a run directory holds beside its store, all of which can be made again from it: all rows as parquet or CSV, a summary
of every point as JSON, the study, and what it ran on."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from attnlimit.errors import InputError
from attnlimit.files import records
from attnlimit.files.records import finite, parquet, write_json
from attnlimit.studies.kind import kind
from attnlimit.studies.machine import Session
from attnlimit.studies.spec import Study
from attnlimit.studies.store import in_words
from attnlimit.studies.view import Findings, StudyRun, value_at

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the compiled one, where there is one
STUDY, MACHINE, SUMMARY, TABLE = "study.yaml", "machine.json", "summary.json", "results.parquet"
AT_ONCE = 50_000
SCHEMA = "attnlimit.study/1"


def varied(run: StudyRun) -> dict[str, str]:
    """The columns that tell points apart: paths of the grid and of the cases, each "int", "float" or "text"."""
    types: dict[str, set[type]] = {path: set() for path in run.paths}
    for _, what in run.points():
        for path in types:
            types[path].add(type(value_at(what, path)))
    return {path: _column(found - {type(None)}) for path, found in types.items()}


def _column(types: set[type]) -> str:
    if types and types <= {int, float}:
        return "int" if types == {int} else "float"
    return "text"


def columns(run: StudyRun) -> dict[str, str]:
    """Names and types of the long table: the point, what varies, then what the kind measures."""
    measured: dict[str, str] = {"replicate": "int", **kind(run.study.kind).result.columns}
    varies = {f"what.{path}" if path in measured else path: column for path, column in varied(run).items()}
    return {"point": "int", **varies, **measured}


def rows(run: StudyRun) -> Iterator[list[Any]]:
    """The long table, in the order of the points, whatever order they were computed in."""
    names = list(kind(run.study.kind).result.columns)
    where = names.index("replicate") if "replicate" in names else None
    for index, first, result in run.results():
        what = json.loads(run.rows("SELECT what FROM points WHERE point = ?", index)[0][0])
        told = [index, *(_cell(value_at(what, path)) for path in run.paths)]
        for row in result.rows():
            cells: list[Any] = list(row)
            replicate = first + (0 if where is None else cells.pop(where))
            yield [*told, replicate, *cells]


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def export(run: StudyRun, path: Path) -> Path:
    """Write the long table, as parquet or CSV by the file's ending."""
    if path.suffix not in (".parquet", ".csv"):
        raise InputError(f"A table is written as .parquet or .csv, got {path.name!r}.")
    with replacing(path) as new:
        (_parquet if path.suffix == ".parquet" else _csv)(run, new)
    return path


def _parquet(run: StudyRun, path: Path) -> None:
    pa, pq = parquet()
    types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
    schema = pa.schema([(name, types[column]) for name, column in columns(run).items()])
    source = rows(run)
    with pq.ParquetWriter(path, schema) as writer:
        while block := list(islice(source, AT_ONCE)):
            arrays = [
                pa.array([_as(field.type, cell) for cell in cells], field.type)
                for field, cells in zip(schema, zip(*block, strict=True), strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _as(column: Any, cell: Any) -> Any:
    """Text columns may hold numbers where points differ in kind."""
    return str(cell) if cell is not None and str(column) == "string" else cell


def _csv(run: StudyRun, path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns(run))
        writer.writerows(rows(run))


def summary(found: Findings) -> dict[str, Any]:
    """The study, its state, its sessions, and every point that has results, in few numbers; what is not finite is None."""
    record: dict[str, Any] = finite(
        {
            "schema": SCHEMA,
            "study": found.study.model_dump(mode="json"),
            "done": found.done,
            "total": found.total,
            "failed": found.failed,
            "points": [
                {"point": one.index, "varies": one.varies, **one.result.summary()} for one in found.points
            ],
            "failures": [asdict(one) for one in found.failures],
            "sessions": [asdict(one) for one in found.sessions],
        }
    )
    return record


def write_summary(found: Findings, path: Path) -> None:
    """As strict JSON."""
    with replacing(path) as new:
        new.write_text(json.dumps(summary(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def describe(folder: Path, study: Study, sessions: list[Session]) -> None:
    """The resolved study, and versions and hardware of every session."""
    with replacing(folder / STUDY) as new:
        told = yaml.dump(study.model_dump(mode="json"), Dumper=DUMPER, sort_keys=False, allow_unicode=True)
        new.write_text(
            f"# Resolved: every field is here. `attnlimit sweep {STUDY}` runs it again.\n{told}", "utf-8"
        )
    with in_words(folder):
        write_json(folder / MACHINE, {"sessions": [asdict(one) for one in sessions]})


def derive(run: StudyRun) -> Findings:
    """Write the table and the summary; returns what they are made from."""
    found = run.findings()
    describe(run.folder, run.study, found.sessions)
    export(run, run.folder / TABLE)
    write_summary(found, run.folder / SUMMARY)
    return found


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """`records.replacing` with the folder made, and the words of a run for what the disk refuses."""
    with in_words(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with records.replacing(path) as new:
            yield new
