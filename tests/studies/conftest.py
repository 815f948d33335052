"""Processes for tests of runs that are killed."""

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

Say = Callable[[Any], None]


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[Say], None]], tuple[Any, Connection]]]:
    """Start a function in a process of its own, which costs nothing, unlike importing torch again. The function is given
    `say`, and what it says can be received."""
    started: list[tuple[Any, Connection]] = []

    def start(work: Callable[[Say], None]) -> tuple[Any, Connection]:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=work, args=(theirs.send,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn where there are threads
            process.start()
        theirs.close()
        started.append((process, ours))
        return process, ours

    yield start
    for process, ours in started:
        process.kill()
        process.join()
        process.close()
        ours.close()
