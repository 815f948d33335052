"""Reading a run, finished or still being written, and what its directory holds beside its store, all of which can be made again from
it: all rows as parquet or CSV, a summary of every point as JSON, the study, and what it ran on."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import yaml

from attnlimit.errors import InputError, StoreError
from attnlimit.files.lock import holder
from attnlimit.files.records import finite, parquet, replacing, write_json, write_text
from attnlimit.numerics.words import counted
from attnlimit.studies.kind import Cell, Point, Result, kind
from attnlimit.studies.machine import Session
from attnlimit.studies.spec import Study, task
from attnlimit.studies.store import DAMAGED, NAME, Reader, in_words, seal, version
from attnlimit.studies.work import unpack


@dataclass(frozen=True)
class State:
    """Where a run stands."""

    folder: Path
    study: str
    kind: str
    state: str
    """running, finished, incomplete (stopped or killed), or failed (all was tried, some tasks were given up)."""
    done: int
    total: int
    failed: int
    """Tasks without a result that raised or died at least once."""
    writer: str | None
    updated: float

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "folder": str(self.folder)}


@dataclass(frozen=True)
class Failure:
    """An attempt at a task that failed: how, and its traceback."""

    point: int
    first: int
    how: str
    message: str
    at: float

    @property
    def last_line(self) -> str:
        return self.message.strip().splitlines()[-1]


@dataclass(frozen=True, repr=False)
class Findings:
    """All that is known of a study at one moment."""

    study: Study
    done: int
    total: int
    failed: int
    points: list[Point[Any]]
    """Those that have results."""
    failures: list[Failure] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)

    def __repr__(self) -> str:
        tasks = f"{self.done:,} of {self.total:,} tasks done, {self.failed:,} failed"
        return (
            f"Findings({self.study.name}, {self.study.kind}: {counted(len(self.points), 'point')}, {tasks})"
        )


class StudyRun(Reader):
    """A run directory, read at one moment: what is committed later is not seen."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder, self.connection = folder, connection
        about = dict(self.rows("SELECT key, value FROM about"))
        if "study" not in about:
            raise InputError(f"{folder} holds a run that never started: run its specification again.")
        if about.get("seal") not in (None, seal(str(about["study"]))):
            raise StoreError(f"{folder}: {DAMAGED} (the study is not the one that was run).")
        self.study = self.read(Study.model_validate_json, about["study"])
        self._version = self.read(int, about["version"]) if "version" in about else None

    @property
    def state(self) -> State:
        done, total = self.counts()
        ((updated,),) = self.rows("SELECT max(finished) FROM tasks JOIN results USING (id)")
        lacking = "SELECT count(DISTINCT id) FROM failures JOIN tasks USING (id) WHERE id NOT IN (SELECT id FROM results)"
        failed = self.rows(lacking)[0][0]
        by = holder(self.folder)
        if by is not None:
            word = "running"
        elif done == total:
            word = "finished"
        else:
            word = "failed" if done + failed == total else "incomplete"
        writer = None if by is None else str(by)
        return State(
            self.folder, self.study.name, self.study.kind, word, done, total, failed, writer, updated or 0.0
        )

    def points(self) -> Iterator[tuple[int, dict[str, Any]]]:
        self.refuse_damaged("integrity_check(1)")
        for point, what in self.connection.execute("SELECT point, what FROM points ORDER BY point"):
            yield point, self.read(json.loads, what)

    @property
    def paths(self) -> list[str]:
        """The fields that tell points apart: those of the grid and of the cases."""
        return list(dict.fromkeys(chain(self.study.grid, *self.study.cases)))

    def found(self) -> list[Point[Any]]:
        """Every point that has results, those of its tasks as one."""
        known, points = kind(self.study.kind), []
        for index, what in self.points():
            parts = [result for *_, result in self.results(index)]
            if parts:
                varies = {path: value_at(what, path) for path in self.paths}
                asked = self.read(known.model_validate, what)
                points.append(Point(index, varies, asked, known.result.joined(parts)))
        return points

    def results(self, point: int | None = None) -> Iterator[tuple[int, int, Result]]:
        """(point, first replicate, result) of every finished task, or of those of one point."""
        chosen = "" if point is None else "WHERE point = ?"
        query = f"SELECT id, point, first, count, result FROM tasks JOIN results USING (id) {chosen} ORDER BY point, first"
        what = lru_cache(maxsize=1)(self.what)
        for id, index, first, count, result in self.connection.execute(
            query, () if point is None else (point,)
        ):
            first, count = self.read(int, first), self.read(int, count)
            self._check(id, what(index), first, count)
            yield index, first, unpack(kind(self.study.kind), result)

    def _check(self, id: bytes, what: dict[str, Any], first: int, count: int) -> None:
        """That it is the identity of this task, as the attnlimit that planned it makes it; stores without a seal do not tell."""
        study, version = self.study, self._version
        if version is not None and id != replace(task(study, what, first, count), version=version).id:
            raise StoreError(f"{self.folder}: {DAMAGED} (a task is not the one that was planned).")

    def failures(self) -> list[Failure]:
        """Every attempt that failed, of tasks of the present study."""
        query = "SELECT point, first, how, message, at FROM failures JOIN tasks USING (id) ORDER BY failure"
        return [Failure(*row) for row in self.rows(query)]

    def findings(self) -> Findings:
        """All that is known now."""
        state = self.state
        counts = (state.done, state.total, state.failed)
        return Findings(self.study, *counts, self.found(), self.failures(), self.sessions())


def value_at(what: dict[str, Any], path: str) -> Cell:
    """The value of a field by its path; a list or mapping as JSON."""
    value: Any = what
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return json.dumps(value) if isinstance(value, list | dict) else value


@contextmanager
def open_run(folder: str | Path) -> Iterator[StudyRun]:
    """A run directory, for reading: `with open_run(folder) as run: run.state`."""
    folder = Path(folder)
    if not (folder / NAME).is_file():
        raise InputError(f"{folder} is no run of a study: there is no {NAME} in it.")
    with in_words(folder), closing(_connect(folder)) as connection:
        connection.execute("BEGIN")
        yield StudyRun(folder, connection)


def _connect(folder: Path) -> sqlite3.Connection:
    path = (folder / NAME).resolve()
    # Where SQLite may tidy up its own files when the last connection closes, it is let, and nothing else.
    mode = "rw" if os.access(folder, os.W_OK) and os.access(path, os.W_OK) else "ro"
    if mode == "ro" and not path.with_name(f"{NAME}-wal").exists():
        mode += "&immutable=1"  # its shared-memory file cannot be made here, and nobody writes
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30)
    try:
        connection.execute("PRAGMA query_only = ON")
        if version(connection, str(folder)) == 0:
            raise InputError(f"{folder} holds a run that never started: run its specification again.")
    except BaseException:
        connection.close()
        raise
    return connection


def find_runs(folder: str | Path) -> list[Path]:
    """The run directories in and below a folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}.")
    return sorted(path.parent for path in folder.glob(f"**/{NAME}") if path.is_file())


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
        what = run.what(index)
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
    with in_words(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new:
            if path.suffix == ".parquet":
                _parquet(run, new)
                return path
            with new.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns(run))
                writer.writerows(rows(run))
    return path


def _parquet(run: StudyRun, path: Path) -> None:
    pa, pq = parquet()
    types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
    schema = pa.schema([(name, types[column]) for name, column in columns(run).items()])
    source = rows(run)
    with pq.ParquetWriter(path, schema) as writer:
        while block := list(islice(source, AT_ONCE)):
            arrays = []
            for column, cells in zip(schema, zip(*block, strict=True), strict=True):
                text = column.type == types["text"]  # which may hold numbers where points differ in kind
                told = [str(cell) if text and cell is not None else cell for cell in cells]
                arrays.append(pa.array(told, column.type))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


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


def describe(folder: Path, study: Study, sessions: list[Session]) -> None:
    """The resolved study, and versions and hardware of every session."""
    told = yaml.dump(study.model_dump(mode="json"), Dumper=DUMPER, sort_keys=False, allow_unicode=True)
    note = f"# Resolved: every field is here. `attnlimit sweep {STUDY}` runs it again."
    with in_words(folder):
        write_text(folder / STUDY, f"{note}\n{told}")
        write_json(folder / MACHINE, {"sessions": [asdict(one) for one in sessions]})


def derive(run: StudyRun) -> Findings:
    """Write the table and the summary; returns what they are made from."""
    found = run.findings()
    describe(run.folder, run.study, found.sessions)
    export(run, run.folder / TABLE)
    with in_words(run.folder):
        write_json(run.folder / SUMMARY, summary(found))
    return found
