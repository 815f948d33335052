"""attnlimit: what attention becomes with infinitely many tokens, and how far n tokens are from it."""

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlimit import drawing

__version__ = "0.1.0"
_HOMES = {
    one.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for one in node.names
}
"""Where the public names live, as the file for type checkers says. A module is imported when one of its names is first asked for,
so `import attnlimit` costs nothing."""
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'attnlimit' has no attribute {name!r}")
    folder = home == __name__
    module = import_module(f"{home}.{name}" if folder else home)
    globals()[name] = module if folder else getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        """An imported folder becomes an attribute of the package; `rates` stays the function."""
        own = isinstance(value, ModuleType) and _HOMES.get(name) == value.__name__
        super().__setattr__(name, getattr(value, name) if own else value)


sys.modules[__name__].__class__ = _Package
drawing.providers.append(lambda: import_module("attnlimit.report.figures").register())
