"""Records of our own, checked by their types wherever they come from, a call or a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import core_schema

from attnlimit.errors import InputError

T = TypeVar("T")
CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """A frozen dataclass that takes nothing but what its annotations say: InputError for the rest."""
    made: Any = dataclass(kind, frozen=True, config=CONFIG)
    build, names = made.__init__, [one.name for one in fields(made)]

    @wraps(build)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            build(self, *args, **kwargs)
        except ValidationError as problem:
            raise InputError(f"{kind.__name__}: {_sentence(problem, names)}") from None

    made.__init__ = checked
    return made


class OwnRecord:
    """In an annotation, Annotated[Sampling, OwnRecord]: a class with to_dict and from_dict of its own."""

    @classmethod
    def __get_pydantic_core_schema__(cls, kind: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def read(value: object) -> object:
            return value if isinstance(value, kind) else kind.from_dict(value)

        written = core_schema.plain_serializer_function_ser_schema(lambda value: value.to_dict())
        return core_schema.no_info_plain_validator_function(read, serialization=written)


def to_record(value: object) -> dict[str, Any]:
    """Plain numbers, lists and text."""
    return TypeAdapter(type(value)).dump_python(value, mode="json")


def from_record(kind: type[T], given: object, what: str, **parts: tuple[type, str]) -> T:
    """From what `to_record` gives: every field is there and no others, of the right type and range. `parts` are fields
    that are lists of records themselves, with what to call one of them."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(given, Mapping):
        raise InputError(f"{what} must be an object with {', '.join(names)}, got {given!r:.80}.")
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(f"{what} lacks {', '.join(map(repr, missing))}.")
    for name, (part, called) in parts.items():
        if not isinstance(given[name], list):
            raise InputError(f"{name} must be a list, got {type(given[name]).__name__}.")
        for place, one in enumerate(given[name]):
            from_record(part, one, f"{called} {place}")
    try:
        return TypeAdapter(kind).validate_json(json.dumps(given))
    except ValidationError as problem:
        raise InputError(f"{what}: {_sentence(problem, names)}") from problem


def read_record(path: Path, schema: str, build: Callable[[dict[str, Any]], T], what: str, remedy: str) -> T:
    """What `build` makes of the JSON file; refusals come with the file's name, and old schemas with the remedy."""
    if not path.is_file():
        raise InputError(f"There is no {what} {path}. {remedy}")
    try:
        given = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        raise InputError(
            f"{path} is not a {what}: not valid JSON, so it is damaged ({problem}). {remedy}"
        ) from problem
    try:
        return build(with_schema(given, schema, remedy))
    except InputError as problem:
        raise InputError(f"{path} is not a usable {what}: {problem}") from problem


def with_schema(given: object, schema: str, remedy: str) -> dict[str, Any]:
    """The record without its schema, if that is the one asked for."""
    if not isinstance(given, dict) or "schema" not in given:
        raise InputError(f'it has no "schema" field. {remedy}')
    if given["schema"] != schema:
        raise InputError(f"its schema is {given['schema']!r}, but this version reads {schema!r}. {remedy}")
    return {name: value for name, value in given.items() if name != "schema"}


def _sentence(problem: ValidationError, names: list[str]) -> str:
    """The first thing that is wrong: where, what is wanted, what there is."""
    first = problem.errors(include_url=False)[0]
    steps = [names[at] if k == 0 and isinstance(at, int) else at for k, at in enumerate(first["loc"])]
    place = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in steps).lstrip(".")
    if first["type"] == "value_error":
        return f"{place}: {first['ctx']['error']}" if place else str(first["ctx"]["error"])
    if first["type"] == "unexpected_keyword_argument":
        return f"{place} is an unknown field."
    return f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r:.80}."


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
