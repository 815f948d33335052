"""Worker processes on this machine. One that dies costs the task it was running, and is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from attnlimit.errors import InputError, WorkersLost
from attnlimit.studies.work import Ended, work

# Why a pool of our own: when a worker of concurrent.futures or of loky dies, the whole pool is broken and all of its pending
# tasks fail alike, without a word on which one was running. Here a death costs one task, and is counted against that one.
AHEAD = 4
"""Tasks that a worker holds, so that it need not wait for the coordinator between two of them."""
PER_CORE, LEAST = 8, 32
"""Workers, and threads of each, that are started at most: so many for each core, or so many in all."""
FALSE_STARTS = 3
OUT_OF_MEMORY = " (the system does so when memory runs out: use fewer --workers, or a smaller chunk)"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    ready: bool = False
    held: deque[int] = field(default_factory=deque)
    """Places of its tasks, the running one first."""
    since: float = 0.0
    """When the running one began."""

    @classmethod
    def start(cls, threads: int) -> _Worker:
        """A fresh interpreter, not a fork: nothing of this process leaks into a task. Of a session of its own, so that
        Ctrl-C reaches the coordinator alone."""
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=os.environ | dict.fromkeys(THREADS, str(threads)),
                **_inheriting(theirs.fileno()),
            )
        return cls(process, ours)

    def messages(self) -> Iterator[Ended | None]:
        """What it has sent, first None when it is ready; ends with EOFError when it is gone."""
        while self.connection.poll():
            try:
                yield self.connection.recv()
            except OSError as problem:  # killed in the middle of a message
                raise EOFError from problem

    def end(self) -> str:
        """Make sure that it is gone; how it went, in words."""
        self.connection.close()
        self.process.kill()
        code = self.process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}{OUT_OF_MEMORY if name == 'SIGKILL' else ''}"


def _inheriting(end: int) -> dict[str, Any]:
    """How a process is given this end of a pipe, and nothing else, and does not hear Ctrl-C."""
    if sys.platform == "win32":
        os.set_handle_inheritable(end, True)
        own = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [end]})
        return {"startupinfo": own, "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"pass_fds": [end], "start_new_session": True}


def serve(end: int) -> None:
    """Of a worker, at its end of the pipe: take tasks and answer with outcomes until the coordinator goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kind = "PipeConnection" if sys.platform == "win32" else "Connection"
    pipe: Connection = getattr(connection, kind)(end)
    tasks: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, tasks), daemon=True).start()
    with suppress(OSError):  # the coordinator has gone
        pipe.send(None)  # it is ready
        while True:
            pipe.send(work(*tasks.get()))


def _receive(pipe: Connection, tasks: SimpleQueue[tuple[int, bytes]]) -> None:
    while True:
        try:
            tasks.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)  # nobody is left to take the result, so the running task is not finished


def check_room(workers: int, threads: int) -> None:
    """Whether this machine can be asked for so many processes of so many threads."""
    cores = os.cpu_count() or 1
    most = max(LEAST, PER_CORE * cores)
    for name, number in (("workers", workers), ("threads", threads)):
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")
        if number > most:
            raise InputError(
                f"{name} must be at most {most} here, got {number}: this machine has {cores} cores, and each worker is a process with memory of "
                "its own. Use about as many as there are cores."
            )


class Processes:
    """`workers` processes of `threads` threads each. One whose task takes longer than `task_seconds` is ended."""

    def __init__(self, workers: int, threads: int = 1, task_seconds: float | None = None) -> None:
        check_room(workers, threads)
        self.slots = workers * AHEAD
        self.about = f"{workers} processes of {threads} thread{'s' * (threads > 1)}"
        self._threads, self._false_starts, self._task_seconds = threads, 0, task_seconds
        self._tasks: dict[int, bytes] = {}
        self._returned: deque[int] = deque()
        self._workers = [_Worker.start(threads) for _ in range(workers)]

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    @property
    def ready(self) -> bool:
        """Whether all workers have started."""
        return all(worker.ready for worker in self._workers)

    def submit(self, place: int, task: bytes) -> None:
        self._tasks[place] = task
        self._returned.append(place)
        self._hand_out()

    def _hand_out(self) -> None:
        """To the workers that hold fewest."""
        while self._returned:
            worker = min(self._workers, key=lambda one: len(one.held))
            if len(worker.held) >= AHEAD:
                return
            place = self._returned.popleft()
            if not worker.held:
                worker.since = time.monotonic()
            worker.held.append(place)
            try:
                worker.connection.send((place, self._tasks[place]))
            except OSError:
                return  # it has just died, and `collect` will see that

    def collect(self, timeout: float) -> list[Ended]:
        outcomes: list[Ended] = []
        ready = wait([worker.connection for worker in self._workers], timeout)
        for index, worker in enumerate(self._workers):
            try:
                for message in worker.messages() if worker.connection in ready else ():
                    self._heard(worker, message, outcomes)
                self._refuse_hung(worker)
            except (EOFError, TimeoutError) as end:
                outcomes += self._buried(worker, str(end))
                self._workers[index] = _Worker.start(self._threads)
        self._hand_out()
        return outcomes

    def _refuse_hung(self, worker: _Worker) -> None:
        limit = self._task_seconds
        if limit is not None and worker.ready and worker.held and time.monotonic() - worker.since > limit:
            raise TimeoutError(f"it did not end within {limit:g} s (task_seconds), so its worker was ended")

    def _heard(self, worker: _Worker, outcome: Ended | None, outcomes: list[Ended]) -> None:
        worker.since = time.monotonic()
        if outcome is None:
            worker.ready, self._false_starts = True, 0
            return
        worker.held.popleft()
        del self._tasks[outcome.place]
        outcomes.append(outcome)

    def _buried(self, worker: _Worker, why: str = "") -> list[Ended]:
        """Its running task has died with it; those behind it go to others."""
        how = worker.end()
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts >= FALSE_STARTS:
                raise WorkersLost(
                    f"{FALSE_STARTS} worker processes in a row failed (the last {how}) before they could start: see what they printed, or run "
                    "with --workers 1, which needs none."
                )
        running = [worker.held.popleft()] if worker.ready and worker.held else []
        self._returned.extendleft(reversed(worker.held))
        for place in running:
            del self._tasks[place]
        return [Ended(place, "died", (why or f"the worker {how}").encode()) for place in running]

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []
