"""The public names: imported when asked for, and the same for people, type checkers and editors."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import attnlimit as al


def public() -> dict[str, str]:
    """What type checkers see: each name, and the module that it comes from."""
    tree = ast.parse(Path(al.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert all(one.asname == one.name for node in imports for one in node.names)  # else they are not public
    return {one.name: node.module for node in imports for one in node.names}


def test_every_name_is_there():
    assert {*public()} == {*al.__all__} <= {*dir(al)}
    for name, home in public().items():
        folder = home == "attnlimit"
        module = import_module(f"{home}.{name}" if folder else home)
        assert getattr(al, name) is (module if folder else getattr(module, name))
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
