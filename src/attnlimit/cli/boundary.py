"""Where every command ends: what went wrong is one line on standard error and an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from re import match, search
from types import FrameType
from typing import Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from attnlimit.cli.common import err
from attnlimit.errors import AttnlimitError, InputError, one_line

DEBUG = "--debug"
PASSED_ON = (typer.Exit, typer.Abort)
"""How commands end on purpose."""
MISUSED: type[Any] = typer.BadParameter.__mro__[2]
"""All of typer's refusals of options."""
RUN_FILES = (
    "run.json", "answer.safetensors", "heads.parquet", "compare.json", "explain.json", "verdict.json", "store.sqlite", "study.yaml",
)  # fmt: skip
"""That hold a run: what is read of a folder."""
MADE = (
    *RUN_FILES, "machine.json", "summary.json", "results.parquet", "risks.csv", "report.html", "explain.html", "downstream.json", "lock",
    "writer.json", "heatmap.png", "curves.png", "slopes.png", "answer.png", "downstream.png", "thirds.png", "unfinished.safetensors",
    "unfinished-passes.safetensors",
)  # fmt: skip
"""That commands write into a folder."""
OF_STUDIES = ("sweep", "icl", "reproduce")
"""Commands whose runs are of studies."""
INTERRUPTED = (
    "Interrupted. Run the same command again: it starts anew, or goes on where it keeps checkpoints."
)
LOADING = ("<frozen importlib._bootstrap>", f"{os.sep}llvmlite{os.sep}")
"""In the names of files that are at work while code is loaded: Python's, and compiled code."""


def interrupted(_: int, frame: FrameType | None) -> None:
    """Ctrl-C interrupts the command. Before and after it, and while code is loaded, it ends the process at once: C++ code that is being
    loaded aborts at an exception or loses it, a half-imported module makes errors of its own, and nothing is half written then."""
    files = set()
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    if __file__ in files and not any(part in file for file in files for part in LOADING):
        raise KeyboardInterrupt
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(130)


class Boundary(TyperGroup):
    """The commands. `--debug`, wherever it stands, shows the traceback in place of the line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for stream in (sys.stdout, sys.stderr):
            # a letter that the terminal does not know is no reason to fail
            if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
                stream.reconfigure(errors="replace")
        given = [one for one in args if one != DEBUG]
        try:
            return super().parse_args(ctx, [DEBUG, *given] if len(given) < len(args) else given)
        except MISUSED as problem:
            if not args:  # the help was shown
                raise
            _misused(problem, ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, whose file is imported now that it is wanted."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, command(name) if found and name else None, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PASSED_ON:
            raise
        except MISUSED as problem:
            _misused(problem, ctx)
        except KeyboardInterrupt as stop:
            err.print(INTERRUPTED)
            raise typer.Exit(130) from stop
        except Exception as problem:
            if ctx.params.get("debug") or getattr(problem, "errno", None) == errno.EPIPE:
                raise
            _leave(problem)


class Command(TyperCommand):
    """A command, which does not write over what it reads."""

    def invoke(self, ctx: Any) -> Any:
        read, written = self._places(ctx)
        other = "run.json" if self.name in OF_STUDIES else "store.sqlite"
        for path in written:
            theirs = _inputs(path, read)
            for file in filter(os.path.exists, (path, *(os.path.join(path, name) for name in MADE))):
                if any(os.path.samefile(file, one) for one in theirs):
                    raise InputError(
                        f"{file} is read by this command, which would write over it: name another place to write to."
                    )
            if os.path.exists(os.path.join(path, other)):
                raise InputError(
                    f"{path} holds a run of another kind ({other}), whose report would be lost: name another folder with --out."
                )
        return super().invoke(ctx)

    def _places(self, ctx: Any) -> tuple[list[tuple[str, str]], list[str]]:
        """What is there of that which is read, by the argument's name, and of that which is written."""
        read: list[tuple[str, str]] = []
        written: list[str] = []
        for one in self.params:
            given = ctx.params.get(one.name)
            paths = [str(part) for part in (given if isinstance(given, list | tuple) else [given]) if part]
            there = [*filter(os.path.exists, paths)]
            if {"--out", "--plot"} & {*one.opts}:
                written += there
            else:
                read += [(one.name, path) for path in there]
        return read, written


def _inputs(written: str, read: list[tuple[str, str]]) -> list[str]:
    """What must not be written over: a folder's run is added to, a model's folder holds nothing but the model."""
    if os.path.isdir(written):
        return [path for name, path in read if name == "model" or (name != "run" and os.path.isfile(path))]
    return [file for _, path in read for file in _files(path)]


def _files(path: str) -> list[str]:
    """That, and what holds the run there."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    return [path, *filter(os.path.isfile, (os.path.join(folder, name) for name in RUN_FILES))]


def command(name: str) -> Any:
    """The command of that name, from the file of that name."""
    one = typer.Typer(add_completion=False, rich_markup_mode="rich")
    one.command(name, cls=Command)(getattr(import_module(f"attnlimit.cli.{name}"), name))
    return typer.main.get_command(one)


def _misused(problem: Any, ctx: Any) -> NoReturn:
    path = f"{ctx.command_path} {ctx.invoked_subcommand or ''}".strip()
    words = problem.format_message()
    _say(f"{words}{'' if words.endswith(('.', '?')) else '.'} `{path} --help` lists what there is.")
    raise typer.Exit(problem.exit_code) from problem


def _leave(problem: Exception) -> NoReturn:
    if isinstance(problem, ModuleNotFoundError) and not isinstance(problem, AttnlimitError):
        words, code = _extra(problem.name or ""), 2
    elif isinstance(problem, AttnlimitError | OSError | MemoryError):
        words, code = str(problem) or "there is not enough memory for this.", 2
    else:
        words, code = f"{problem} This was not foreseen: {DEBUG} shows where it happened.", 1
    _say(f"{type(problem).__name__}: {words}")
    raise typer.Exit(code) from problem


def _say(words: str) -> None:
    err.print(Text.assemble(("error:", "bold red"), f" {one_line(words)}"), soft_wrap=True)


def _extra(module: str) -> str:
    """The line that installs what lacks, from the package's own list of extras."""
    package = {"yaml": "pyyaml", "sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
    try:
        known = requires("attnlimit") or []
    except PackageNotFoundError:
        known = []
    for line in known:
        extra = search(r"extra == ['\"]([\w-]+)['\"]", line)
        if extra and match(rf"{package}\b", line):
            return f"This needs {package}: pip install 'attnlimit[{extra[1]}]'."
    return f"This needs {package}: pip install {package}."
