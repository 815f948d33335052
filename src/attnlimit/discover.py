"""Members of a family that live one a file in a package: a new file is a new member, and nothing else names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar, cast

from attnlimit.errors import InputError

T = TypeVar("T")


def built(kinds: Mapping[str, type[T]], value: object, what: str) -> T:
    """A member of a family from its name, or from its record {"name": "moment", "order": 3}."""
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    kind = kinds.get(name := str(options.pop("name", None)))
    if kind is None:
        raise InputError(f"{what} must be one of {', '.join(kinds)}; got {value!r}.")
    try:
        return kind(**options)
    except TypeError as problem:
        needed = ", ".join(one.name for one in fields(cast(Any, kind)))
        raise InputError(
            f"The {what} {name!r} takes {needed or 'nothing more'}, got {options or 'nothing of it'}."
        ) from problem


def record(name: str, member: object) -> str | dict[str, object]:
    """What `built` reads: the name alone where that says all."""
    options = asdict(cast(Any, member))
    return {"name": name, **options} if options else name


def modules(package: str, only: str | None = None) -> Iterator[ModuleType]:
    """The modules of a package, or the one of that name, imported."""
    for name in names(package) if only is None else [only]:
        yield import_module(f"{package}.{name}")


def names(package: str) -> list[str]:
    """The modules of a package, none of which is imported."""
    where = find_spec(package).submodule_search_locations  # type: ignore[union-attr]
    return [found.name for found in iter_modules(where)]


def members(package: str, attribute: str, only: str | None = None) -> list[Any]:
    """That attribute of every module of a package that has it, or of one module `only`."""
    return [getattr(one, attribute) for one in modules(package, only) if hasattr(one, attribute)]


def subclasses(package: str, base: type[T], only: str | None = None) -> list[type[T]]:
    """The subclasses of `base` that the modules of a package define, or one module `only`."""
    found = ((one, value) for one in modules(package, only) for value in vars(one).values())
    return [
        value
        for one, value in found
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == one.__name__
        if value is not base
    ]
