"""What a kind of study is: the fields of a specification, how a task of them is computed, and its one result.

A new kind is a file in `kinds/`, named as the kind is, with a subclass of `Kind` that has a `title`. Tables, the summary, words and
figures follow from the type of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product, repeat
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast

import torch
from pydantic import TypeAdapter
from torch import Tensor

from attnlimit import discover
from attnlimit.errors import InputError
from attnlimit.files.strict import ByFields
from attnlimit.studies.fields import Fields

KINDS = "attnlimit.studies.kinds"
Columns: TypeAlias = Mapping[str, Literal["int", "float", "text"]]
Cell: TypeAlias = int | float | str | None
Cells: TypeAlias = Iterable[Sequence[Cell]]
"""Of a long table, in the order of its columns."""
Row: TypeAlias = Mapping[str, Cell]
"""One line of a table for people: headings and what stands under them."""
Folder: TypeAlias = Path | None
"""A folder of a task's own for its checkpoints, which may not be there yet."""


def table(columns: str) -> Columns:
    """Names with their types, floats unless they say otherwise: "layer:int sampling:text rms"."""
    parts = (word.partition(":") for word in columns.split())
    return {name: cast(Any, kind or "float") for name, _, kind in parts}


def crossed(axes: Sequence[Iterable[Cell]], *values: Tensor | None) -> Iterator[tuple[Cell, ...]]:
    """Every combination of the axes, the last of which runs fastest, with the values there."""
    flat = (repeat(None) if one is None else one.flatten().tolist() for one in values)
    return ((*place, *found) for place, *found in zip(product(*axes), *flat, strict=False))


R = TypeVar("R", bound="Result")
K = TypeVar("K", bound="Kind")


class Result:
    """What a task found, and what the tasks of a point found together. Subclasses are frozen dataclasses whose fields are
    numbers, words, arrays, and tuples and dataclasses of these: `to_dict` and `from_dict` follow from them."""

    columns: ClassVar[Columns]
    """Of the long table."""
    by_replicate: ClassVar[tuple[str, ...]] = ()
    """Fields that have a part for each replicate: arrays and tuples by their first axis, what has a `joined`, mappings of these, or None."""

    def rows(self) -> Cells:
        """In the order of `columns`; "replicate" counts from 0 in each task."""
        raise NotImplementedError

    @classmethod
    def joined(cls: type[R], parts: Sequence[R]) -> R:
        """The tasks of a point, in order, as one result; what has no noise has one task."""
        found = {name: _joined([getattr(one, name) for one in parts]) for name in cls.by_replicate}
        return replace(cast(Any, parts[0]), **found) if found else parts[0]

    def to_dict(self) -> dict[str, Any]:
        """The record form: what JSON knows."""
        return _adapter(type(self)).dump_python(self)

    @classmethod
    def from_dict(cls: type[R], data: Mapping[str, Any]) -> R:
        return _adapter(cls).validate_python(data)

    def summary(self) -> dict[str, object]:
        """What summary.json says of a point: few numbers, not every replicate."""
        return {name: value for name, value in self.to_dict().items() if name not in self.by_replicate}

    def shown(self) -> list[Row]:
        """What tables for people say of a point, in one line or several."""
        return [{}]

    @classmethod
    def words(cls: type[R], points: Sequence[Point[R]]) -> list[str]:
        """What the page says of all points, in sentences."""
        return []

    def methods(self) -> Row:
        """How the numbers were got: what the foot of the page says, e.g. under Method."""
        return {}


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _joined([one[name] for one in values]) for name in first}
    if first is None or hasattr(first, "joined"):
        return None if first is None else type(first).joined(values)
    return torch.cat([*values]) if isinstance(first, Tensor) else tuple(chain(*values))


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(
    lambda kind: TypeAdapter(cast(Any, Annotated[kind, ByFields]))
)
R_co = TypeVar("R_co", bound=Result, covariant=True)


@dataclass(frozen=True)
class Point(Generic[R_co]):
    """A point of a study that has results."""

    index: int
    varies: Row
    """What tells it from the others, by path in `what`."""
    what: Any
    """The fields of its kind."""
    result: R_co

    @property
    def label(self) -> str:
        """What tells it from the others, in words."""
        return ", ".join(f"{short(path)} {plain(value)}" for path, value in self.varies.items())


class Kind(Fields):
    """`what` of a specification, and how a task of it is computed."""

    title: ClassVar[str]
    """In words, for people."""
    result: ClassVar[type[Result]]
    together: ClassVar[bool] = False
    """Whether one task computes several replicates; else each replicate is a task."""
    least: ClassVar[int] = 1
    """Replicates of a task."""
    tried: ClassVar[int] = 2
    """Replicates of a task that is tried for an estimate: many where what comes before them takes long."""
    noise: ClassVar[bool] = True
    """Whether replicates differ."""
    narrows: ClassVar[bool] = False
    """Whether a precision can be asked for: there is a `half_width`."""
    version: ClassVar[int] = 1
    """Of what a task means: results of another version are not reused."""

    @classmethod
    def name(cls) -> str:
        return cls.__module__.rpartition(".")[2]

    def run(self, replicates: int, seed: int, place: Folder) -> Result:
        """Pure, so that it does not matter where or when it runs. `place` is removed once the result is committed."""
        raise NotImplementedError

    def check(self) -> object:
        """Raises what the first task would raise, without computing it."""

    def half_width(self, found: Any, of: str, level: float) -> float:
        """Half the width of the interval that a precision target is about."""
        raise NotImplementedError

    def brief(self: K) -> tuple[K, float]:
        """A small part of the work, and how many times as long the whole takes: for estimates, where tasks are long."""
        return self, 1.0


@cache
def kinds() -> list[str]:
    """The names of all kinds."""
    return discover.names(KINDS)


@cache
def kind(name: str) -> type[Kind]:
    """The kind of that name."""
    if name not in kinds():
        raise InputError(f"Unknown kind of study {name!r}: use one of {', '.join(kinds())}.")
    return next(one for one in discover.subclasses(KINDS, Kind, name) if "title" in vars(one))


def short(path: str) -> str:
    """The last part of a path, in words.

    >>> short("head.own_horizon")
    'own horizon'
    """
    return path.rpartition(".")[2].replace("_", " ")


def plain(value: Cell) -> str:
    """Numbers to four digits, words as they are."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
