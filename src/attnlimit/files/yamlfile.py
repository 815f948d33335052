"""YAML files of settings, read safely; what is wrong in one is said with its line and field."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from attnlimit.errors import InputError, needs

if TYPE_CHECKING:
    from yaml import Node, SafeLoader

Place: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the top of a file down to a value."""
Model = TypeVar("Model")

_LARGEST, _DEEPEST, _SHOWN = 2**20, 100, 5
# YAML 1.2's plain scalars: 1e-3 is a number, while no, on, 1:30 and 2026-01-01 are words
_SCALARS = {
    "null": (r"~|null|", "~n\0"),
    "bool": (r"true|false", "tf"),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
}


def read_yaml(path: str | Path) -> tuple[Any, dict[Place, int]]:
    """What the file holds (plain values, lists and mappings only), and the line of every value, counted from 1.

    Refused: keys given twice, keys that are not words or whole numbers, anchors, aliases, tags, numbers that are not
    finite, more than one document, files above 1 MB.
    """
    path = Path(path)
    with needs("Files of settings need pydantic and pyyaml", "studies"):
        import pydantic  # noqa: F401
        import yaml
    text = _text(path)
    try:
        _refuse(text, path)
        loader = _loader()(text)
        node = loader.get_single_node()
        if node is None:
            raise InputError(f"{path} is empty: there is nothing to read in it.")
        lines = dict(_lines(node, (), path))
        return loader.construct_document(node), lines
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        what = getattr(problem, "problem", None) or str(problem).splitlines()[0]
        raise InputError(f"{path}{where}: not valid YAML: {what}.") from problem
    except ValueError as problem:
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{path}: a value cannot be read: {problem}.") from problem


def validated(model: type[Model], data: Any, lines: Mapping[Place, int], path: str | Path) -> Model:
    """`data` as the pydantic model; if it does not fit, an InputError that names file, line and field.

    The values may be changed before (a quick size, an option of the command line): a field that is not in the
    file is given with the line of the nearest mapping around it.
    """
    from pydantic import ValidationError

    if not isinstance(data, dict):
        raise InputError(f"{path}: a mapping of fields was expected, got {type(data).__name__}.")
    try:
        pydantic_model: Any = model
        return pydantic_model.model_validate(data)
    except ValidationError as problem:
        errors = problem.errors(include_url=False)
    told = [_told(error, lines) for error in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        told.append(f"and {len(errors) - _SHOWN} more")
    raise InputError(f"{path}: " + "; ".join(told) + ".")


def _text(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if path.stat().st_size > _LARGEST:
        raise InputError(f"{path} is larger than 1 MB: a file of settings is small.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InputError(f"{path} is not UTF-8 text (byte {problem.start}).") from problem


def _refuse(text: str, path: Path) -> None:
    """What is valid YAML and not read, before anything is made of it."""
    import yaml

    depth = 0
    for event in yaml.parse(text, _loader()):
        if any(getattr(event, what, None) for what in ("anchor", "tag")):
            what = "anchors, aliases and tags are not read; write the value out"
            raise yaml.parser.ParserError(None, None, what, event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise InputError(f"{path}: nested too deeply to be read, in more than {_DEEPEST} levels.")


@cache
def _loader() -> type[SafeLoader]:
    """In C where PyYAML has that: some twenty times as fast."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    plain: Any = type("Plain", (base,), {"yaml_implicit_resolvers": {}})
    for name, (pattern, first) in _SCALARS.items():
        plain.add_implicit_resolver(
            f"tag:yaml.org,2002:{name}",
            re.compile(f"^(?:{pattern})$"),
            ["" if c == "\0" else c for c in first],
        )
    return plain


def _lines(node: Node, place: Place, path: Path) -> Iterator[tuple[Place, int]]:
    """(place, line) of the node and of all below it."""
    import yaml

    line = node.start_mark.line + 1
    yield place, line
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:float":
        if not math.isfinite(yaml.constructor.SafeConstructor().construct_yaml_float(node)):
            raise InputError(
                f"{path}: line {line}, {'.'.join(map(str, place))}: {node.value} is not a finite number; give one, or leave it out."
            )
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            yield from _lines(item, (*place, position), path)
    elif isinstance(node, yaml.MappingNode):
        keys: dict[str, int] = {}
        for key, value in node.value:
            here = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{path}, line {here}: a key must be a word.")
            if key.value in keys:
                raise InputError(
                    f"{path}, line {here}: {key.value!r} was given before, in line {keys[key.value]}; keep one."
                )
            keys[key.value] = here
            yield from _lines(value, (*place, key.value), path)
            yield (*place, key.value), here


def _told(error: Any, lines: Mapping[Place, int]) -> str:
    """One of pydantic's errors in our words: line, field, what is wrong, what was given."""
    place: Place = ()
    for part in error["loc"]:  # parts that name a member of a union are not in the file
        if (*place, part) in lines:
            place = (*place, part)
    at = f"line {lines[place]}, " if place in lines else ""
    field = ".".join(str(part) for part in error["loc"]) or "the file"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{at}{field}: there is no such field"
    if error["type"] == "missing":
        return f"{at}{field}: this field is missing"
    what = str(error["msg"]).removeprefix("Value error, ").removesuffix(".")
    given = error["input"]
    shown = "" if isinstance(given, dict | list) and error["loc"] == () else f", got {str(given)[:60]!r}"
    return f"{at}{field}: {what}{shown if error['type'] != 'value_error' else ''}"
