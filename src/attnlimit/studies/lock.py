"""One coordinator for each run directory."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from attnlimit.studies.errors import RunLocked
from attnlimit.studies.store import said

NAME = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run directory; RunLocked names who holds it already. The kernel lets go when the holder dies."""
    with said(folder):
        file = (folder / NAME).open("a+", encoding="utf-8")
    with file:
        if not _taken(file):
            by = _read(folder) or {}
            raise RunLocked(
                f"{folder} is being written by process {by.get('pid', '?')} on {by.get('host', '?')} "
                f"(since {by.get('since', '?')}): wait until it ends, or stop it first."
            )
        with said(folder):
            file.truncate(0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}))
            file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _taken(file: TextIO) -> bool:
    """Whether the lock could be had. Those who only look hold it for an instant, so a second try is fair."""
    for wait in (0.05, 0.1, 0.0):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(wait)
        else:
            return True
    return False


def holder(folder: Path) -> dict[str, Any] | None:
    """Who writes to the run directory now, or None."""
    try:
        with open(folder / NAME, encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return _read(folder) or {}
    except OSError:
        return None
    return None


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
