"""One task after the other, in this process."""

from __future__ import annotations

from collections import deque

from attnlimit.studies.stop import Stop, Stopped
from attnlimit.studies.work import Ended, work


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
