"""Running one task, wherever it is: the same bytes come out in every executor."""

from __future__ import annotations

import json
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError

from attnlimit.errors import StoreError
from attnlimit.studies.kind import Kind, Result, kind
from attnlimit.studies.spec import Task, canonical
from attnlimit.studies.store import DAMAGED

LONGEST = 16_000
"""Characters of a traceback that are kept, from its end."""


class Ended(NamedTuple):
    """What became of a task: "done" with its packed result, "raised" with a traceback, "died" with the reason (its
    worker is gone, `deaths` of them), "lost" if it was never run."""

    place: int
    how: str
    body: bytes
    seconds: float = 0.0
    deaths: int = 1


def work(place: int, task: bytes) -> Ended:
    """The outcome of a task; errors of the task are an outcome, not an error of the worker."""
    start = time.perf_counter()
    try:
        body, how = pack(run(Task.from_bytes(task))), "done"
    except (Exception, SystemExit):  # a kind of others may end the process, which is no one's wish
        body, how = traceback.format_exc()[-LONGEST:].encode(), "raised"
    return Ended(place, how, body, time.perf_counter() - start)


def run(task: Task) -> Result:
    """The result of a task."""
    found = kind(task.kind)
    place = None if task.place is None else Path(task.place)
    if place is not None and not place.parents[1].is_dir():
        place = None  # a worker on another machine, without the disk of the run
    with _threads(task.threads):
        return found.model_validate(task.what).run(task.count, task.stream, place)


def pack(result: Result) -> bytes:
    """Its record as compressed JSON: numbers keep every bit, and nothing in it can run."""
    return zlib.compress(canonical(result.to_dict()), 6)


def unpack(found: type[Kind], data: bytes) -> Result:
    """The result of a task of that kind."""
    try:
        return found.result.from_dict(json.loads(zlib.decompress(data)))
    except (zlib.error, ValueError, TypeError) as problem:
        if not isinstance(problem, ValidationError):
            raise StoreError(
                f"A result of kind {found.name()} cannot be read: {DAMAGED} ({problem})."
            ) from problem
        raise StoreError(
            f"A result of kind {found.name()} has another form than this attnlimit gives it: run the study again in a new "
            f"folder, or read it with the attnlimit that wrote it ({problem.errors()[0]['msg']})."
        ) from problem


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """A fixed number of threads, since sums depend on it; as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
