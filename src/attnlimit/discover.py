"""Members of a family that live one a file in a package: a new file is a new member, and nothing else names it."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

T = TypeVar("T")


def names(package: str) -> list[str]:
    """The modules of a package, none of which is imported."""
    return [found.name for found in iter_modules(import_module(package).__path__)]


def members(package: str, attribute: str, only: str | None = None) -> list[Any]:
    """That attribute of every module of a package that has it, or of one module `only`."""
    chosen = names(package) if only is None else [only]
    modules = [import_module(f"{package}.{name}") for name in chosen]
    return [getattr(module, attribute) for module in modules if hasattr(module, attribute)]


def subclasses(package: str, base: type[T]) -> list[type[T]]:
    """The subclasses of `base` that the modules of a package define."""
    found = (import_module(f"{package}.{name}") for name in names(package))
    return [
        value
        for module in found
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
        if value is not base
    ]
