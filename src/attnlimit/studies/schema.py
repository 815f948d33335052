"""The tables of a run, and how older ones become the present ones."""

from __future__ import annotations

import sqlite3

from attnlimit.studies.errors import StoreError

MIGRATIONS = (
    """
    CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    -- what the present specification asks for
    CREATE TABLE points (point INTEGER PRIMARY KEY, what TEXT NOT NULL);
    CREATE TABLE tasks (
        place INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, point INTEGER NOT NULL,
        first INTEGER NOT NULL, count INTEGER NOT NULL
    );
    CREATE INDEX tasks_of_point ON tasks (point, first);
    -- what is known, whether it is asked for now or was before
    CREATE TABLE results (
        id BLOB PRIMARY KEY, result BLOB NOT NULL, seconds REAL NOT NULL, finished REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE failures (
        failure INTEGER PRIMARY KEY, id BLOB NOT NULL, how TEXT NOT NULL, message TEXT NOT NULL, at REAL NOT NULL
    );
    CREATE INDEX failures_of_task ON failures (id);
    """,
    """
    -- which session, with which versions and on which machine, found each result
    CREATE TABLE sessions (session INTEGER PRIMARY KEY, about TEXT NOT NULL);
    ALTER TABLE results ADD COLUMN session INTEGER;
    ALTER TABLE failures ADD COLUMN session INTEGER;
    """,
)
"""The first makes a new store; each further one takes a store from its version to the next."""
VERSION = len(MIGRATIONS)


def version(connection: sqlite3.Connection) -> int:
    """The version of a store; 0 for an empty file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, name: str) -> None:
    """Bring a store to the present version, each step whole or not at all."""
    found = version(connection)
    if found > VERSION:
        raise StoreError(
            f"{name} was written by a newer attnlimit (store version {found}, this one knows {VERSION}): upgrade attnlimit."
        )
    for step in range(found, VERSION):
        connection.executescript(f"BEGIN; {MIGRATIONS[step]} PRAGMA user_version = {step + 1}; COMMIT;")
