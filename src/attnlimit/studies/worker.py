"""A worker process: `python -m attnlimit.studies.worker FD` reads tasks from a socket and answers with outcomes.

Messages are bytes: a task's is its place, 8 bytes, and its JSON; an outcome's is place, seconds, a letter and a body.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue

from attnlimit.studies.work import Outcome, work

READY = b"ready"
HEADER = struct.Struct(">qdc")
LETTERS = {"done": b"d", "raised": b"r"}
WORDS = {letter: how for how, letter in LETTERS.items()}


def encode(outcome: Outcome) -> bytes:
    return HEADER.pack(outcome.place, outcome.seconds, LETTERS[outcome.how]) + outcome.body


def decode(message: bytes) -> Outcome:
    place, seconds, letter = HEADER.unpack_from(message)
    return Outcome(place, WORDS[letter], message[HEADER.size :], seconds)


def serve(connection: Connection) -> None:
    """Work until the coordinator goes."""
    tasks: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    connection.send_bytes(READY)
    while True:
        message = tasks.get()
        connection.send_bytes(encode(work(int.from_bytes(message[:8], "big"), message[8:])))


def _receive(connection: Connection, tasks: SimpleQueue[bytes]) -> None:
    while True:
        try:
            tasks.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # nobody is left to take the result, so the running task is not finished


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
