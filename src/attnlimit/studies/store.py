"""The store of a run: SQLite in the run directory, one writer, one transaction for each finished task."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter

from attnlimit.errors import InputError, StoreError
from attnlimit.studies.kind import kind
from attnlimit.studies.machine import Session
from attnlimit.studies.spec import Task, canonical

VERSION = 4
"""Of the tables, of the form of the results in them, and of what the identities of tasks are made from."""
TABLES = """
    CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    -- what the present specification asks for
    CREATE TABLE points (point INTEGER PRIMARY KEY, what TEXT NOT NULL);
    CREATE TABLE tasks (
        place INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, point INTEGER NOT NULL,
        first INTEGER NOT NULL, count INTEGER NOT NULL
    );
    CREATE INDEX tasks_of_point ON tasks (point, first);
    -- which session, with which versions and on which machine, found each result
    CREATE TABLE sessions (session INTEGER PRIMARY KEY, about TEXT NOT NULL);
    -- what is known, whether it is asked for now or was before
    CREATE TABLE results (
        id BLOB PRIMARY KEY, result BLOB NOT NULL, seconds REAL NOT NULL, finished REAL NOT NULL, session INTEGER
    ) WITHOUT ROWID;
    CREATE TABLE failures (
        failure INTEGER PRIMARY KEY, id BLOB NOT NULL, how TEXT NOT NULL, message TEXT NOT NULL, at REAL NOT NULL,
        session INTEGER
    );
    CREATE INDEX failures_of_task ON failures (id);
"""


def version(connection: sqlite3.Connection, name: str) -> int:
    """The version of a store, 0 for an empty file; refused if it is not the present one."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > VERSION:
        raise StoreError(
            f"{name} was written by a newer attnlimit (store version {found}, this one knows {VERSION}): upgrade attnlimit."
        )
    if 0 < found < VERSION:
        raise StoreError(
            f"{name} was written by an older attnlimit, whose results have another form (store version {found}, this one "
            f"knows {VERSION}): read it with that version, or run its study.yaml again with --out and a new folder."
        )
    return found


def create(connection: sqlite3.Connection) -> None:
    """All tables or none."""
    connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")


def seal(study: str) -> str:
    """What a study is known by; points and tasks are by the identities of tasks, and results have checksums."""
    return sha256(study.encode()).hexdigest()


NAME = "store.sqlite"
SYNC_SECONDS = 0.05
"""Results wait at most so long for the disk. Until then they survive any crash but one of the whole machine."""


SESSION = TypeAdapter(Session)
DAMAGED = f"{NAME} is damaged. Move the folder away, or bring it back from a copy, and run the study again"
ADVICE = {
    "the disk is full. Free some space": ("full", "No space", "too large"),
    "the run directory cannot be written. Give yourself the right to, or name another with --out": (
        "readonly", "Permission", "Read-only", "unable to open",
    ),
    DAMAGED: ("malformed", "not a database", "decode"),
    f"{NAME} is in use by another program. Close it": ("locked",),
}  # fmt: skip
"""What to do, by what is in the words of the disk or of SQLite."""


class Waiting(NamedTuple):
    """A task without a result."""

    place: int
    id: bytes
    point: int
    what: str
    first: int
    replicates: int


T = TypeVar("T")


class Reader:
    """What is asked of a store by those who write it and those who read it."""

    folder: Path
    connection: sqlite3.Connection

    def rows(self, query: str, *values: object) -> list[Any]:
        with in_words(self.folder):
            return self.connection.execute(query, values).fetchall()

    def counts(self) -> tuple[int, int]:
        """(tasks with a result, tasks in all) of the present study."""
        total = self.rows("SELECT count(*) FROM tasks")[0][0]
        return self.rows("SELECT count(*) FROM tasks JOIN results USING (id)")[0][0], total

    def refuse_damaged(self, check: str) -> None:
        """Let SQLite look at its pages, or at the order of rows and indexes too."""
        found = self.rows(f"PRAGMA {check}")[0][0]
        if found != "ok":
            raise StoreError(f"{self.folder}: {DAMAGED} ({found}).")

    def read(self, build: Callable[[Any], T], what: object) -> T:
        """What stands there, which may be damaged or of another attnlimit."""
        try:
            return build(what)
        except (LookupError, TypeError, ValueError) as problem:
            raise StoreError(
                f"{self.folder}: {DAMAGED}; if another attnlimit wrote it, read it with that one ({str(problem).splitlines()[0]})."
            ) from problem

    def what(self, point: int) -> dict[str, Any]:
        """The resolved fields of a point."""
        found = self.rows("SELECT what FROM points WHERE point = ?", point)
        return self.read(lambda rows: json.loads(rows[0][0]), found)

    def sessions(self) -> list[Session]:
        rows = self.rows("SELECT about FROM sessions ORDER BY session")
        return [self.read(SESSION.validate_json, about) for (about,) in rows]


class Store(Reader):
    """The writing side. Every statement is a transaction of its own unless `_whole` groups them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self.session: int | None = None
        self._dirty, self._synced = False, 0.0
        with in_words(folder):
            self.connection = sqlite3.connect(self.path, isolation_level=None, timeout=30)
            try:
                self._prepare(folder)
            except BaseException:
                self.connection.close()
                raise

    def _prepare(self, folder: Path) -> None:
        wal = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal"
        # In WAL mode the file is flushed by `sync`, many commits at once; elsewhere by every commit.
        self.connection.execute(f"PRAGMA synchronous = {'NORMAL' if wal else 'FULL'}")
        self.refuse_damaged("quick_check(1)")
        if version(self.connection, str(folder)) == 0:
            create(self.connection)
        self.refuse_damaged("integrity_check(results)")  # all else is planned anew
        self._wal = os.open(f"{self.path}-wal", os.O_RDWR) if wal else None

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Everything inside, or nothing."""
        with in_words(self.folder):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
                raise
        self._dirty = True

    # --- the plan ---------------------------------------------------------------------------------

    def plan(
        self, study: dict[str, Any], points: Iterable[tuple[dict[str, Any], Iterable[Task]]], total: int
    ) -> None:
        """Replace what is asked for by these `total` points; results stay, and those of equal tasks count at once.

        The first task of every point comes before the second of any, so that all of a study is seen early.
        """
        with self._whole():
            for table in ("points", "tasks"):
                self.connection.execute(f"DELETE FROM {table}")
            told = json.dumps(study)  # the grid's order counts
            sealed = {"study": told, "seal": seal(told), "version": str(kind(study["kind"]).version)}
            self.connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", sealed.items())
            for point, (what, tasks) in enumerate(points):
                self.connection.execute("INSERT INTO points VALUES (?, ?)", [point, canonical(what).decode()])
                self._append(point, ((turn * total + point + 1, task) for turn, task in enumerate(tasks)))

    def extend(self, point: int, tasks: Iterable[Task]) -> None:
        """More tasks of a point, after all others."""
        with self._whole():
            self._append(point, ((None, task) for task in tasks))

    def _append(self, point: int, tasks: Iterable[tuple[int | None, Task]]) -> None:
        rows = ((place, task.id, point, task.first, task.count) for place, task in tasks)
        try:
            self.connection.executemany("INSERT INTO tasks VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as problem:
            raise InputError(
                f"Two points of the study are the same (the second is number {point + 1}): keep one."
            ) from problem

    def start_session(self, about: Session) -> None:
        with self._whole():
            told = canonical(asdict(about)).decode()
            self.session = self.connection.execute(
                "INSERT INTO sessions (about) VALUES (?)", [told]
            ).lastrowid

    # --- reading what to do -----------------------------------------------------------------------

    def waiting(self, after: int, limit: int) -> list[Waiting]:
        """The next tasks without a result, by place: a few at a time, so that memory does not grow with their number."""
        query = """
            SELECT place, tasks.id, point, what, first, count FROM tasks JOIN points USING (point)
            WHERE place > ? AND NOT EXISTS (SELECT 1 FROM results WHERE results.id = tasks.id)
            ORDER BY place LIMIT ?"""
        return [Waiting(*row) for row in self.rows(query, after, limit)]

    def lacks(self, point: int) -> bool:
        """Whether a task of the point has no result."""
        query = "SELECT 1 FROM tasks LEFT JOIN results USING (id) WHERE point = ? AND result IS NULL LIMIT 1"
        return bool(self.rows(query, point))

    def results_of(self, point: int) -> list[tuple[int, bytes]]:
        """(number of replicates, result) of every finished task of a point, in order."""
        query = "SELECT count, result FROM tasks JOIN results USING (id) WHERE point = ? ORDER BY first"
        return self.rows(query, point)

    # --- writing what was found -------------------------------------------------------------------

    def record(self, id: bytes, result: bytes, seconds: float) -> None:
        """One finished task, in a transaction of its own. A result is never replaced: it could not differ."""
        self._insert("OR IGNORE INTO results (id, result, seconds, finished, session)", id, result, seconds)

    def record_failure(self, id: bytes, how: str, message: str) -> None:
        self._insert("INTO failures (id, how, message, at, session)", id, how, message)

    def _insert(self, where: str, *row: object) -> None:
        """With the time and the session."""
        self.rows(f"INSERT {where} VALUES (?, ?, ?, ?, ?)", *row, time.time(), self.session)
        self._dirty = True

    def sync(self, *, now: bool = False) -> bool:
        """Flush to the disk what was committed, if the last time is long enough ago; whether all of it is there."""
        if self._dirty and (now or time.monotonic() - self._synced >= SYNC_SECONDS):
            if not self.path.exists():
                raise StoreError(
                    f"{self.folder} was removed or moved while the run wrote to it. If it was moved, go on there: "
                    "attnlimit sweep FOLDER --resume."
                )
            if self._wal is not None:
                with in_words(self.folder):
                    os.fsync(self._wal)
            self._dirty, self._synced = False, time.monotonic()
        return not self._dirty

    def close(self) -> None:
        with in_words(self.folder):
            if self._wal is not None:
                os.close(self._wal)
            self.connection.close()


@contextmanager
def in_words(folder: Path) -> Iterator[None]:
    """What the disk and SQLite refuse, in plain words."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError, UnicodeDecodeError) as problem:
        if isinstance(problem, StoreError):
            raise
        text = str(problem)
        found = (advice for advice, signs in ADVICE.items() if any(sign in text for sign in signs))
        advice = next(found, "the store cannot be used. Look at the disk")
        kept = "" if advice == DAMAGED else "; what was committed is kept, and the run can be resumed"
        raise StoreError(f"{folder}: {advice}{kept} ({text}).") from problem
