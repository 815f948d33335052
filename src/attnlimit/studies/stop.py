"""Ctrl-C, SIGTERM and a terminal that is closed: finish what is being written, give up what is being computed, within seconds."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""A terminal that is closed hangs up."""
GRACE = 4.0
"""Seconds after which the process ends even if a task computes on in foreign code. The store is safe at any moment."""
EXIT = 130


class Stopped(BaseException):
    """Raised inside a task that runs in this process; not an Exception, so that no task takes it for its own error."""


class Stop:
    """Whether to stop. Inside `signals()` the signals say so, outside only `ask()` does."""

    def __init__(self) -> None:
        self.asked = False
        self._breakable = False

    def ask(self) -> None:
        self.asked = True

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """A signal breaks off what happens inside: for tasks, never for commits."""
        self._breakable = True
        try:
            if self.asked:
                raise Stopped
            yield
        finally:
            self._breakable = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Listen to the signals; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in heard}
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        waker = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(ours, over), daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            signal.set_wakeup_fd(waker)
            for number, handler in before.items():
                signal.signal(number, handler)
            theirs.close()
            watch.join()
            ours.close()

    def _handle(self, number: int, frame: FrameType | None) -> Any:
        self.asked = True
        if self._breakable:
            self._breakable = False
            raise Stopped


def _watch(wakes: socket.socket, over: threading.Event) -> None:
    """Python handles a signal only between two of its own steps; this thread hears of it at once."""
    while received := wakes.recv(1):
        if received[0] in SIGNALS and not over.wait(GRACE):
            sys.stderr.write("Stopped; what was being computed is given up, what was committed is kept.\n")
            sys.stderr.flush()
            os._exit(EXIT)
