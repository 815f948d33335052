"""One writer of a folder at a time, on any system."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from attnlimit.errors import RunLocked
from attnlimit.files.records import PARTIAL

LOCK, WRITER = "lock", "writer.json"
PATIENCE = 0.15
"""Seconds to wait for the lock: those who only look hold it for an instant."""


@dataclass(frozen=True)
class Writer:
    """Who writes to a run directory."""

    pid: int | str = "?"
    host: str = "?"
    since: str = "?"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


ADAPTER = TypeAdapter(Writer)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run directory; RunLocked names who holds it already. The system lets go when the holder dies, and what it left
    half written is removed by the next."""
    lock = FileLock(folder / LOCK, timeout=PATIENCE)
    try:
        lock.acquire()
    except Timeout as problem:
        by = _read(folder)
        raise RunLocked(
            f"{folder} is being written by {by} (since {by.since}): wait until it ends, or stop it first."
        ) from problem
    try:
        for left in folder.rglob(f".*{PARTIAL}"):
            with suppress(OSError):
                left.unlink()
        me = Writer(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S"))
        (folder / WRITER).write_bytes(ADAPTER.dump_json(me))
        yield
    finally:
        (folder / WRITER).unlink(missing_ok=True)
        lock.release()


def holder(folder: Path) -> Writer | None:
    """Who writes to the run directory now, or None."""
    if not (folder / LOCK).exists():
        return None
    lock = FileLock(folder / LOCK, timeout=PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        return _read(folder)
    except OSError:
        return None  # a folder that cannot be written has no writer
    lock.release()
    return None


def _read(folder: Path) -> Writer:
    try:
        return ADAPTER.validate_json((folder / WRITER).read_bytes())
    except (OSError, ValidationError):
        return Writer()
