"""Running one task, wherever it is: the same bytes come out in every executor."""

from __future__ import annotations

import json
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from attnlimit.studies.kinds import kind
from attnlimit.studies.task import Task, canonical

LONGEST = 16_000
"""Characters of a traceback that are kept, from its end."""


class Outcome(NamedTuple):
    """What became of a task: "done" with its packed result, "raised" with a traceback, "died" with the reason (its
    worker is gone, `deaths` of them), "lost" if it was never run."""

    place: int
    how: str
    body: bytes
    seconds: float = 0.0
    deaths: int = 1


def work(place: int, task: bytes) -> Outcome:
    """The outcome of a task; errors of the task are an outcome, not an error of the worker."""
    start = time.perf_counter()
    try:
        body, how = pack(run(Task.from_bytes(task))), "done"
    except Exception:
        body, how = traceback.format_exc()[-LONGEST:].encode(), "raised"
    return Outcome(place, how, body, time.perf_counter() - start)


def run(task: Task) -> dict[str, Any]:
    """The result of a task, as plain data."""
    found = kind(task.kind)
    with _threads(task.threads):
        return found.run(found.what.model_validate(task.what), task.count, task.stream)


def pack(result: dict[str, Any]) -> bytes:
    """Compressed JSON: numbers keep every bit, and nothing in it can run."""
    return zlib.compress(canonical(result), 6)


def unpack(data: bytes) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(zlib.decompress(data))
    return result


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """A fixed number of threads, since sums depend on it; as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
