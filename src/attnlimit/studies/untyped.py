"""Kinds whose results are still plain mappings, as one type of result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from attnlimit.studies.fields import Fields
from attnlimit.studies.kind import Column, Kind, Result, Row

Data: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Untyped(Result):
    what: Data
    parts: tuple[Data, ...]
    fields: ClassVar[type[Fields]]
    row: ClassVar[Callable[[Data], Iterable[Sequence[Any]]]]
    told: ClassVar[Callable[[Any, list[Data]], Data]]

    def __getitem__(self, name: str) -> Any:
        return self.parts[0][name]

    def rows(self) -> Iterable[Sequence[Any]]:
        for part in self.parts:
            yield from type(self).row(part)

    @classmethod
    def joined(cls, parts: Sequence[Untyped]) -> Untyped:
        return cls(parts[0].what, tuple(part for one in parts for part in one.parts))

    def summary(self) -> Data:
        return type(self).told(self.fields.model_validate(self.what), list(self.parts))

    def shown(self) -> list[Row]:
        return [
            {name: value for name, value in self.summary().items() if isinstance(value, int | float | str)}
        ]


def untyped(
    name: str,
    what: type[Any],
    run: Callable[[Any, int, int], Data],
    columns: Mapping[str, Column],
    rows: Callable[[Data], Iterable[Sequence[Any]]],
    summary: Callable[[Any, list[Data]], Data],
    **more: Any,
) -> Kind[Any, Any]:
    members = {"columns": columns, "row": staticmethod(rows), "told": staticmethod(summary), "fields": what}
    result: Any = type(f"Untyped_{name}", (Untyped,), {**members, "__module__": __name__})

    def task(asked: Any, replicates: int, seed: int, place: Path | None) -> Any:
        return result(asked.model_dump(mode="json"), (run(asked, replicates, seed),))

    return Kind(name=name, what=what, result=result, run=task, **more)
