"""The public names: imported when asked for, and the same for people, type checkers and editors."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import attnlimit as al


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(al.__file__).read_text(encoding="utf-8"))
    (block,) = (
        one for one in tree.body if isinstance(one, ast.If) and getattr(one.test, "id", "") == "TYPE_CHECKING"
    )
    written = {(node.module, one.name, one.asname) for node in block.body for one in node.names}
    homes = {f"attnlimit.{home}".rstrip("."): names.split() for home, names in al._HOMES.items()}
    assert written == {(home, name, name) for home, names in homes.items() for name in names}


def test_every_name_is_there():
    for home, names in al._HOMES.items():
        for name in names.split():
            module = import_module(f"attnlimit.{home or name}")
            assert getattr(al, name) is (getattr(module, name) if home else module)
    assert {*al.__all__} <= {*dir(al)}
    with pytest.raises(AttributeError, match="module 'attnlimit' has no attribute 'none'"):
        _ = al.none


def test_nothing_is_imported_before_it_is_asked_for():
    """And `rates` is the function also when the folder of that name comes first."""
    code = """
import sys
import attnlimit as al
assert "torch" not in sys.modules
import attnlimit.rates.fits
assert al.exact is sys.modules["attnlimit.exact"]
assert al.rates is sys.modules["attnlimit.rates"].rates
assert not {"scipy.stats", "scipy.optimize", "transformers", "pydantic", "matplotlib", "numba"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
