"""Records on disk, as JSON, CSV or parquet, written whole or not at all."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from tempfile import TemporaryFile
from typing import Any, ClassVar

from attnlimit.errors import AttnlimitError, CannotWrite, needs

Rows = Sequence[Mapping[str, Any]]
PARTIAL = ".partial"
"""How names of half-written files end."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write beside `path`, which takes its place once it is whole and on the disk, so that no reader ever sees half
    of one. A link stays, and the file that it leads to is replaced."""
    path = Path(path)
    with _in_words(path):
        place, new = _places(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield new
            with new.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(new, place)
        finally:
            new.unlink(missing_ok=True)


def can_write(path: str | os.PathLike[str], folder: bool = False) -> None:
    """CannotWrite if a file (or a folder with files) could not be written there: tried, and all of it undone."""
    path, made = Path(path), []
    with _in_words(path):
        inside = path if folder else _places(path)[0].parent
        try:
            for place in [*reversed(inside.parents), inside]:
                if not place.is_dir():
                    place.mkdir()
                    made.append(place)
            with TemporaryFile(dir=inside):
                pass
        finally:
            for place in reversed(made):
                place.rmdir()


def _places(path: Path) -> tuple[Path, Path]:
    """Where links lead from there, and the half-written file beside it. Only files are replaced: a pipe or device would be lost."""
    with suppress(FileNotFoundError):
        kind = path.stat().st_mode
        if not S_ISREG(kind):
            what = "folder" if S_ISDIR(kind) else "pipe, socket or device"
            raise CannotWrite(f"{path} is a {what}: give the name of a file to write.")
    place = path.resolve() if path.is_symlink() else path
    new = place.with_name(f".{place.name}.{os.getpid()}{PARTIAL}")
    with suppress(FileNotFoundError):
        new.lstat()  # its name may be too long
    return place, new


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except AttnlimitError:  # what was to be written says itself why it cannot be
        raise
    except OSError as problem:
        in_the_way = isinstance(problem, FileExistsError | NotADirectoryError)
        why = "a file or link stands where a folder must be" if in_the_way else problem.strerror or problem
        raise CannotWrite(
            f"{path} cannot be written: {why}. Name another place, or make room there."
        ) from problem


def finite(value: Any) -> Any:
    """The same with None for what is not finite, which JSON has no word for; tuples become lists.

    >>> finite({"a": (1.0, float("inf"))})
    {'a': [1.0, None]}
    """
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def plain(value: Any) -> Any:
    """What JSON knows: arrays and tuples become lists, results their `to_dict`, named tuples and mappings records, and other
    objects what they say of themselves.

    >>> plain({"n": (1, 2), "of": complex})
    {'n': [1, 2], 'of': "<class 'complex'>"}
    """
    if value is None or isinstance(value, str | int | float):
        return value
    for way in ("to_dict", "tolist"):
        if hasattr(value, way):
            return getattr(value, way)()
    value = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else repr(value)


def record(result: Any) -> dict[str, Any]:
    """The fields of a dataclass, each as JSON knows it."""
    return {field.name: plain(getattr(result, field.name)) for field in fields(result)}


class Recorded:
    """A dataclass with a record."""

    also: ClassVar[tuple[str, ...]] = ()
    """Properties that are in it beside the fields."""

    def to_dict(self) -> dict[str, Any]:
        """Its fields, and what follows from them, as JSON knows them."""
        return record(self) | {name: plain(getattr(self, name)) for name in self.also}


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: str | os.PathLike[str], record: Mapping[str, Any]) -> Path:
    """Strict JSON: ValueError for what is not finite (see `finite`)."""
    return write_text(path, json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_table(path: str | os.PathLike[str], rows: Rows) -> Path:
    """Records as rows: CSV, or parquet if the name ends so. Columns with words in them are text, in parquet."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as new:
        if Path(path).suffix == ".parquet":
            pa, pq = parquet()
            pq.write_table(
                pa.table({name: _same_type([row.get(name) for row in rows]) for name in columns}), new
            )
        else:
            with new.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(rows)
    return Path(path)


def parquet() -> tuple[Any, Any]:
    """pyarrow, and its part for parquet files."""
    with needs("Parquet tables need pyarrow", "studies"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


def _same_type(cells: list[Any]) -> list[Any]:
    """Whole numbers among others become floats, numbers among words text."""
    types = {type(cell) for cell in cells} - {type(None)}
    if types == {int, float}:
        return [None if cell is None else float(cell) for cell in cells]
    return cells if len(types) < 2 else [None if cell is None else str(cell) for cell in cells]
