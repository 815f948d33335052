"""What the commands share: ranges, output, errors."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from attnlimit.errors import AttnlimitError, InputError
from attnlimit.files.records import finite

if TYPE_CHECKING:
    from attnlimit.studies import Cost

P = ParamSpec("P")
R = TypeVar("R")

out, err = Console(highlight=False), Console(stderr=True, highlight=False)

Sizes = Annotated[
    str, typer.Option("--n", help="Numbers of tokens: 1e3, 1e2,1e4,1e6 or 1e3:1e9:12 (log-spaced).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Write a figure (.png, .pdf or .svg).")]


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Say what went wrong in one line, and leave with 2 (bad input) or 130 (interrupted)."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except AttnlimitError as problem:
            err.print(f"[bold red]error:[/] {type(problem).__name__}:", str(problem))
            raise typer.Exit(2) from problem
        except KeyboardInterrupt as stop:
            err.print(
                "[bold]Interrupted.[/] Run the same command again: it starts anew, or goes on where it keeps checkpoints."
            )
            raise typer.Exit(130) from stop

    return run


def numbers(text: str, name: str = "a range") -> list[float]:
    """1e3 · 1,2,5 · start:stop:count (log-spaced, ends included).

    >>> numbers("1:100:3")
    [1.0, 10.0, 100.0]
    """
    try:
        if ":" in text:
            start, stop, count = text.split(":")
            low, high, steps = float(start), float(stop), int(count)
            if not (0 < low <= high < math.inf) or steps < 1 or (steps == 1 and low != high):
                raise ValueError
            ratio = (high / low) ** (1 / max(1, steps - 1))
            return [*(low * ratio**k for k in range(steps - 1)), high]
        values = [float(part) for part in text.split(",")]
        if not all(0 < value < math.inf for value in values):
            raise ValueError
        return values
    except ValueError:
        raise InputError(
            f"{name} must be positive numbers such as 1e3, or 1e2,1e4, or start:stop:count as in 1e3:1e9:12; got {text!r}."
        ) from None


def whole_numbers(text: str, name: str = "--n") -> list[int]:
    """The same, rounded to whole numbers, repeated ones once.

    >>> whole_numbers("1:10:4")
    [1, 2, 5, 10]
    """
    return sorted({round(value) for value in numbers(text, name)} - {0})


def share(text: str, name: str) -> float:
    """A share as a number or in per cent.

    >>> share("10%", "keys"), share("0.1", "keys")
    (0.1, 0.1)
    """
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise InputError(f"--{name} must be a share such as 10% or 0.1, got {text!r}.") from None
    return value / 100 if text.endswith("%") else value


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A compact table, numbers to the right."""
    grid = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        grid.add_column(column, justify="right")
    for row in rows:
        grid.add_row(*(cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row))
    return grid


def duration(seconds: float) -> str:
    """A length of time in words.

    >>> [duration(x) for x in (0.3, 42.0, 300.0, 9000.0)]
    ['1 s', '42 s', '5 min', '2.5 h']
    """
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def time_of(study: Cost) -> str:
    """How long a study will take, in words."""
    if study.likely_seconds is None or study.most_seconds is None:
        return "not known, a task takes longer than was waited for"
    likely, most = duration(study.likely_seconds), duration(study.most_seconds)
    if study.longer:
        return f"more than {likely}"
    return likely if likely == most else f"about {likely}, at most {most}"


def print_json(result: dict[str, Any]) -> None:
    """Strict JSON on standard output: what is not finite becomes null."""
    sys.stdout.write(json.dumps(finite(result), ensure_ascii=False, indent=2) + "\n")


@contextmanager
def progress(what: str, rate_of: str = "") -> Iterator[Callable[..., None]]:
    """A bar on a terminal, nothing in a pipe; yields a function of (done, total, failed). With `rate_of`, how many of these
    end in a second."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}", style="red"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None, rate="", failed="")

        def step(done: int, total: int, failed: int = 0) -> None:
            speed = bar.tasks[task].speed if rate_of else None
            rate = "" if speed is None else f"{speed:.3g} {rate_of}/s"
            bar.update(
                task, completed=done, total=total, rate=rate, failed=f"{failed} failed" if failed else ""
            )

        yield step
