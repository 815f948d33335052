"""What the commands share: ranges, output, errors."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from attnlimit.errors import InputError
from attnlimit.files.records import can_write, finite
from attnlimit.report.figures.style import can_draw

if TYPE_CHECKING:
    from attnlimit.studies import Cost


class Plain(Console):
    """What is written is shown as it is: names of files and models are never read as markup, and sentences are wrapped on a
    terminal only."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        if all(isinstance(one, str | Text) for one in objects):
            options.setdefault("soft_wrap", not self.is_terminal)
        super().print(*objects, **options)

    def render(self, *given: Any, **options: Any) -> Iterator[Segment]:
        """What is shown, without what would move the terminal's cursor or turn its writing: strangers' files hold such names."""
        for one in super().render(*given, **options):
            kept = "".join(c if c.isprintable() or c == "\n" else " " * cell_len(c) for c in one.text)
            yield one if one.control else Segment(kept, one.style)


out, err = Plain(), Plain(stderr=True)

Sizes = Annotated[
    str, typer.Option("--n", help="Numbers of tokens: 1e3, 1e2,1e4,1e6 or 1e3:1e9:12 (log-spaced).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _drawable(path: Path | None) -> Path | None:
    if path is not None:
        can_draw(path)
        can_write(path)
    return path


def _writable(path: Path | None) -> Path | None:
    if path is not None:
        can_write(path)
    return path


def _fillable(folder: Path | None) -> Path | None:
    if folder is not None:
        can_write(folder, folder=True)
    return folder


Plot = Annotated[
    Path | None,
    typer.Option("--plot", callback=_drawable, help="Write a figure (.png, .pdf or .svg)."),
]


def file_out(help: str) -> Any:
    """The option --out for a file, tried before anything is computed."""
    return typer.Option("--out", callback=_writable, help=help)


def folder_out(help: str) -> Any:
    """The option --out for a folder, tried before anything is computed."""
    return typer.Option("--out", callback=_fillable, help=help)


def numbers(text: str, name: str = "a range", most: int = 10_000) -> list[float]:
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
            if steps > most:
                raise InputError(
                    f"{name} must be at most {most:,} numbers, got {text!r}: take a smaller count."
                )
            ratio = (high / low) ** (1 / max(1, steps - 1))
            return [*(low * ratio**k for k in range(steps - 1)), high]
        values = [float(part) for part in text.split(",")]
        if not all(0 < value < math.inf for value in values):
            raise ValueError
        return values
    except InputError:
        raise
    except ValueError:
        raise InputError(
            f"{name} must be positive numbers such as 1e3, or 1e2,1e4, or start:stop:count as in 1e3:1e9:12; got {text!r}."
        ) from None


def whole_numbers(text: str, name: str = "--n", most: int = 10_000) -> list[int]:
    """The same, rounded to whole numbers, repeated ones once.

    >>> whole_numbers("1:10:4")
    [1, 2, 5, 10]
    """
    from attnlimit.inputs import as_count  # needs torch

    found = sorted({round(value) for value in numbers(text, name, most)} - {0})
    if not found:
        raise InputError(f"{name} must be whole numbers of at least 1, got {text!r}.")
    return [as_count(float(one), name) for one in found]


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


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Columns:
    """A compact table, numbers to the right; what is not a number is a dash."""
    return Columns(title, columns, rows)


@dataclass(frozen=True)
class Columns:
    """A table on lines of any width: columns that find no room stand below, beside the first column again."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Table]:
        if self.title:
            yield Text(self.title, "italic")
        rest = [*range(1, len(self.columns))]
        while True:
            fits = max(
                1, sum(self._width(console, rest[:k]) <= options.max_width for k in range(1, len(rest) + 1))
            )
            yield self._grid(rest[:fits])
            rest = rest[fits:]
            if not rest:
                return

    def _width(self, console: Console, chosen: Sequence[int]) -> int:
        return console.measure(self._grid(chosen), options=console.options.update(width=10**4)).maximum

    def _grid(self, chosen: Sequence[int]) -> Table:
        grid = Table(box=None, header_style="bold", pad_edge=False)
        for k in (0, *chosen):
            grid.add_column(self.columns[k], justify="right", overflow="fold")
        for row in self.rows:
            grid.add_row(*(cell(row[k]) for k in (0, *chosen)))
        return grid


def cell(value: object) -> str | Text:
    """A number to four digits; a dash for what is not known."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, Text) else str(value)


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
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(finite(result), ensure_ascii=plain, indent=2) + "\n")


@contextmanager
def progress(what: str, rate_of: str = "") -> Iterator[Callable[..., None]]:
    """A bar on a terminal, nothing in a pipe; yields a function of (done, total, failed). With `rate_of`, how many of these
    end in a second."""
    if not err.is_terminal:  # some versions of rich would end it with an empty line
        yield lambda *counts: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}", style="red"),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=None, rate="", failed="")

        def step(done: int, total: int, failed: int = 0) -> None:
            speed = bar.tasks[task].speed if rate_of else None
            rate = "" if speed is None else f"{speed:.3g} {rate_of}/s"
            bar.update(
                task, completed=done, total=total, rate=rate, failed=f"{failed} failed" if failed else ""
            )

        yield step
