"""Reading a run, finished or still being written: nothing here writes to its store."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from attnlimit.errors import InputError
from attnlimit.studies.kind import Cell, Point, Result, kind
from attnlimit.studies.lock import holder
from attnlimit.studies.machine import Session
from attnlimit.studies.schema import version
from attnlimit.studies.spec import Study
from attnlimit.studies.store import NAME, in_words, read_sessions
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


@dataclass(frozen=True)
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


class StudyRun:
    """A run directory, read at one moment: what is committed later is not seen."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder, self._connection = folder, connection
        found = self.rows("SELECT value FROM about WHERE key = 'study'")
        if not found:
            raise InputError(f"{folder} holds a run that never started: run its specification again.")
        self.study = Study.model_validate_json(found[0][0])

    def rows(self, query: str, *values: object) -> list[Any]:
        return self._connection.execute(query, values).fetchall()

    @property
    def state(self) -> State:
        total = self.rows("SELECT count(*) FROM tasks")[0][0]
        done, updated = self.rows("SELECT count(*), max(finished) FROM tasks JOIN results USING (id)")[0]
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
        for point, what in self._connection.execute("SELECT point, what FROM points ORDER BY point"):
            yield point, json.loads(what)

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
                asked = known.model_validate(what)
                points.append(Point(index, varies, asked, known.result.joined(parts)))
        return points

    def results(self, point: int | None = None) -> Iterator[tuple[int, int, Result]]:
        """(point, first replicate, result) of every finished task, or of those of one point."""
        chosen = "" if point is None else "WHERE point = ?"
        query = (
            f"SELECT point, first, result FROM tasks JOIN results USING (id) {chosen} ORDER BY point, first"
        )
        for index, first, result in self._connection.execute(query, () if point is None else (point,)):
            yield index, first, unpack(kind(self.study.kind), result)

    def failures(self) -> list[Failure]:
        """Every attempt that failed, of tasks of the present study."""
        query = "SELECT point, first, how, message, at FROM failures JOIN tasks USING (id) ORDER BY failure"
        return [Failure(*row) for row in self.rows(query)]

    def sessions(self) -> list[Session]:
        return read_sessions(self._connection)

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
