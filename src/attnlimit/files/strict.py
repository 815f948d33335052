"""Records of our own, checked by their types wherever they come from, a call or a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from jaxtyping import AbstractArray
from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass
from pydantic_core import core_schema
from torch import Tensor

from attnlimit.errors import InputError
from attnlimit.inputs import shown

T = TypeVar("T")
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Of a torch generator."""
CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """A frozen dataclass that takes nothing but what its annotations say: InputError for the rest."""
    made: Any = dataclass(kind, frozen=True, config=CONFIG)
    return told(made)


def told(kind: type[T]) -> type[T]:
    """The class, of pydantic's, whose fields are refused in our words where it is called and not read from a file."""
    made: Any = kind
    build, names = made.__init__, [*(getattr(kind, "model_fields", None) or made.__pydantic_fields__)]

    @wraps(build)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            build(self, *args, **kwargs)
        except ValidationError as problem:
            raise InputError(f"{kind.__name__}: {sentence(problem, names)}") from None

    made.__init__ = checked
    return kind


class OwnRecord:
    """In an annotation, Annotated[Sampling, OwnRecord]: a class with to_dict and from_dict of its own."""

    @classmethod
    def __get_pydantic_core_schema__(cls, kind: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def read(value: object) -> object:
            return value if isinstance(value, kind) else kind.from_dict(value)

        written = core_schema.plain_serializer_function_ser_schema(lambda value: value.to_dict())
        return core_schema.no_info_plain_validator_function(read, serialization=written)


class ByFields:
    """In an annotation, Annotated[PhaseDiagram, ByFields]: a dataclass whose fields are numbers, words, arrays, and tuples,
    mappings and dataclasses of these. In its record arrays are nested lists; numbers keep every bit."""

    @classmethod
    def __get_pydantic_core_schema__(cls, kind: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        hints, names = get_type_hints(kind, include_extras=True), [one.name for one in fields(kind)]
        parts = {name: handler.generate_schema(_kept(hints[name])) for name in names}
        record = core_schema.typed_dict_schema(
            {name: core_schema.typed_dict_field(part) for name, part in parts.items()}
        )

        def read(value: object, inner: Callable[[object], dict[str, Any]]) -> object:
            return value if isinstance(value, kind) else kind(**inner(value))

        def write(value: object, inner: Callable[[object], object]) -> object:
            return inner({name: getattr(value, name) for name in names})

        written = core_schema.wrap_serializer_function_ser_schema(write, schema=record)
        return core_schema.no_info_wrap_validator_function(read, record, serialization=written)


def _kept(hint: Any) -> Any:
    """A type in terms that pydantic knows."""
    inner, origin = get_args(hint), get_origin(hint)
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        dtype = torch.float64 if "float64" in hint.dtypes else torch.int64
        plain = PlainSerializer(lambda one: one.tolist())
        return Annotated[Tensor, PlainValidator(partial(_array, dtype)), plain]
    if is_dataclass(hint):
        return Annotated[hint, OwnRecord if hasattr(hint, "from_dict") else ByFields]
    if origin is Annotated and not is_dataclass(inner[0]):
        return Annotated[(_kept(inner[0]), *inner[1:])]
    if not inner or origin is Annotated:
        return hint
    made = tuple(map(_kept, inner))
    return Union[made] if origin in (Union, UnionType) else cast(Any, origin)[made]  # noqa: UP007


def _array(dtype: torch.dtype, value: object) -> Tensor:
    if not isinstance(value, Tensor | list):
        raise ValueError("must be an array of numbers")
    return torch.as_tensor(value, dtype=dtype)


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
        raise InputError(f"{what}: {sentence(problem, names)}") from problem


def read_record(path: Path, schema: str, build: Callable[[dict[str, Any]], T], what: str, remedy: str) -> T:
    """What `build` makes of the JSON file; refusals come with the file's name, and old schemas with the remedy."""
    if not path.is_file():
        raise InputError(f"There is no {what} {path}. {remedy}")
    try:
        given = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        raise InputError(
            f"{path} is not a usable {what}: not valid JSON, so it is damaged ({problem}). {remedy}"
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


def sentence(problem: ValidationError, names: list[str]) -> str:
    """The first thing that is wrong: where, what is wanted, what there is."""
    first = problem.errors(include_url=False)[0]
    steps = [names[at] if k == 0 and isinstance(at, int) else at for k, at in enumerate(first["loc"])]
    place = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in steps).lstrip(".")
    if first["type"] == "value_error":
        told = f"{place}: {first['ctx']['error']}" if place else str(first["ctx"]["error"])
        return told if told.endswith(".") else f"{told}."
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{place} is an unknown field."
    return f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}, got {shown(first['input'])}."


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
