"""Kinds of task, one a file: what a specification may ask for, the pure function that computes it, its table.

A new kind is a module here with a `KIND`, and its name in `NAMES`. Workers find it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias

from attnlimit.errors import InputError
from attnlimit.studies.fields import Fields

Result: TypeAlias = dict[str, Any]
"""What a task returns: numbers, words, lists and mappings, as JSON knows them."""
Column: TypeAlias = Literal["int", "float", "text"]

NAMES = (
    "convergence",
    "exact",
    "analyze",
    "icl",
    "concentration",
    "output_moments",
    "phase",
    "hardmax",
    "model_convergence",
    "downstream",
    "token_cloud",
    "probe",
)


@dataclass(frozen=True)
class Kind:
    """How tasks of one kind are described, computed and read."""

    name: str
    what: type[Fields]
    """The fields of `what` in a specification."""
    run: Callable[[Any, int, int], Result]
    """(what, number of replicates, seed) → result: pure, so that it does not matter where or when it runs."""
    columns: Mapping[str, Column]
    rows: Callable[[Result], Iterable[Sequence[Any]]]
    """The result as rows of the long table, in the order of `columns`; "replicate" counts from 0 in each task."""
    summary: Callable[[Any, list[Result]], dict[str, Any]]
    """One point of the study in few numbers, from the results of all its tasks in order."""
    check: Callable[[Any], object] | None = None
    """Raises what the first task would raise, without computing it."""
    half_width: Callable[[Any, list[Result], str, float], float] | None = None
    """(what, results, of, level) → half the width of the interval that a precision target is about."""
    brief: Callable[[Any], tuple[Any, float]] | None = None
    """what → (a small part of the work, how many times as long the whole takes): for estimates, where tasks are long."""
    together: bool = False
    """Whether one task computes several replicates; else each replicate is a task."""
    version: int = 1


def kind(name: str) -> Kind:
    """The kind of that name."""
    if name not in NAMES:
        raise InputError(f"Unknown kind of study {name!r}: use one of {', '.join(NAMES)}.")
    found: Kind = import_module(f"{__name__}.{name}").KIND
    return found
