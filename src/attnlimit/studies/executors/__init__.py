"""Where tasks run: here, in processes, on a Dask cluster. All take tasks as bytes and give outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from attnlimit.studies.work import Ended


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
