"""Where tasks run: here, in processes, on a Dask cluster. All take tasks as bytes and give outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from attnlimit.studies.stop import Stop, Stopped
from attnlimit.studies.work import Ended, work


@runtime_checkable
class Executor(Protocol):
    """Tasks go in by `submit`, at most `slots` at a time, and come out of `collect` in any order."""

    @property
    def slots(self) -> int: ...

    @property
    def about(self) -> str:
        """In words, for the record of the run."""

    def submit(self, place: int, task: bytes) -> None: ...

    def collect(self, timeout: float) -> Sequence[Ended]:
        """What has ended; waits up to `timeout` seconds for the first. WorkersLost if nothing can end any more."""

    def close(self) -> None:
        """Stop at once, whatever is running."""


class Serial:
    slots = 1
    about = "serial"

    def __init__(self, stop: Stop | None = None) -> None:
        self._tasks: deque[tuple[int, bytes]] = deque()
        self._stop = stop or Stop()

    def submit(self, place: int, task: bytes) -> None:
        self._tasks.append((place, task))

    def collect(self, timeout: float) -> list[Ended]:
        if not self._tasks:
            return []
        try:
            with self._stop.breaking():
                return [work(*self._tasks.popleft())]
        except Stopped:
            return []

    def close(self) -> None:
        self._tasks.clear()
