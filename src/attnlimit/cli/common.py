"""What the commands share: ranges, laws and heads from options, output, errors."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import attnlimit as al
from attnlimit.errors import AttnlimitError, InputError
from attnlimit.files.arrays import open_rows
from attnlimit.files.records import finite
from attnlimit.measures import laws

if TYPE_CHECKING:
    from attnlimit.studies import Cost

P = ParamSpec("P")
R = TypeVar("R")

out, err = Console(), Console(stderr=True)

LAWS = {name: law for name, law in laws().items() if law.spec.on_command_line}
"""The laws that a dimension and a size make."""
MeasureName = Annotated[
    str, typer.Option("--measure", help=f"Token law: {', '.join([*LAWS][:-1])} or {[*LAWS][-1]}.")
]
Dim = Annotated[int, typer.Option("--dim", help="Dimension of the tokens.")]
Cov = Annotated[
    str | None, typer.Option("--cov", help="Gaussian covariance: a number, or a .npy/.safetensors matrix.")
]
Scale = Annotated[
    float, typer.Option("--scale", help="Radius of the sphere or ball, half-width, Laplace scale.")
]
Horizon = Annotated[
    float | None, typer.Option("--horizon", help="Horizon H of the head: A is the multiple of I that has it.")
]
MatrixA = Annotated[str | None, typer.Option("--A", help="Score matrix A as a .npy/.safetensors file.")]
MatrixV = Annotated[str | None, typer.Option("--V", help="Value matrix V as a file (default: identity).")]
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
            err.print(
                f"[bold red]error:[/] {type(problem).__name__}:", str(problem), highlight=False, markup=True
            )
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


def law_of(measure: str, dim: int, cov: str | None, scale: float) -> al.Measure:
    """The token law that the options describe."""
    if measure not in LAWS:
        raise InputError(f"--measure must be one of {', '.join(LAWS)}; got {measure!r}.")
    law = LAWS[measure]
    if cov is None:
        return law.sized(dim, scale)
    if "cov" not in law.spec.fields:
        takers = " and ".join(name for name, one in LAWS.items() if "cov" in one.spec.fields)
        raise InputError(f"--cov is for {takers} tokens; {measure} takes --scale.")
    value = torch.tensor(float(cov), dtype=torch.float64) if _is_number(cov) else _matrix(cov)
    fields = law.spec.filled(dim if _is_number(cov) else None, scale)
    return law.from_spec(torch.empty(0, dtype=torch.float64), **fields | {"cov": value})


def head_of(law: al.Measure, horizon: float | None, A: str | None, V: str | None) -> al.Head:
    """The head that the options describe: A from a file, or the multiple of the identity with that horizon."""
    if (horizon is None) == (A is None):
        raise InputError("Give the head either by --horizon H or by --A FILE.")
    values = None if V is None else _matrix(V)
    if A is not None:
        return al.Head(_matrix(A), values)
    if horizon is None or not 0 <= horizon < math.inf:
        raise InputError(f"--horizon must be a number of at least 0, got {horizon}.")
    top = float(torch.linalg.matrix_norm(law.covariance, 2))
    return al.Head(horizon / top * torch.eye(law.dim, dtype=torch.float64), values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _matrix(path: str) -> Any:
    file = open_rows(path)
    return file.rows(0, file.shape[0]).double()


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


def time_of(studies: Sequence[Cost]) -> str:
    """How long studies will take together, one after the other, in words."""
    known = [one for one in studies if one.likely_seconds is not None]
    likely, most = (
        duration(sum((getattr(one, name) for one in known), 0.0))
        for name in ("likely_seconds", "most_seconds")
    )
    time = likely if likely == most else f"about {likely}, at most {most}"
    if not known:
        return "not known, a task takes longer than was waited for"
    short = len(known) < len(studies) or any(one.longer for one in known)
    return f"more than {likely}" if short else time


def print_json(result: dict[str, Any]) -> None:
    """Strict JSON on standard output: what is not finite becomes null."""
    sys.stdout.write(json.dumps(finite(result), ensure_ascii=False, indent=2) + "\n")


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing in a pipe; yields a function of (done, total)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
