"""A worker process: `python -m attnlimit.studies.worker FD` reads tasks from a pipe and answers with outcomes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from queue import SimpleQueue

from attnlimit.studies.work import work


def serve(connection: Connection) -> None:
    """Work until the coordinator goes."""
    tasks: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    connection.send(None)  # it is ready
    while True:
        connection.send(work(*tasks.get()))


def _receive(connection: Connection, tasks: SimpleQueue[tuple[int, bytes]]) -> None:
    while True:
        try:
            tasks.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)  # nobody is left to take the result, so the running task is not finished


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kind = "PipeConnection" if sys.platform == "win32" else "Connection"
    serve(getattr(connections, kind)(int(sys.argv[1])))
