"""The tables of a run."""

from __future__ import annotations

import sqlite3

from attnlimit.studies.errors import StoreError

VERSION = 4
"""Of the tables and of the form of the results in them."""
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
