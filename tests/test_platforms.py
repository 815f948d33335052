"""What other systems lack is not asked for: no fcntl, no fork, no signals of Unix, no encoding but the one that is named."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
LACKING = """
import sys
import accelerate, distributed, filelock, matplotlib.pyplot, numba, pyarrow.parquet, scipy.stats, torch, transformers, typer
for name in ("fcntl", "resource", "pwd", "grp", "termios"):  # from here on, and so for us alone
    sys.modules[name] = None
import os, signal
for name in ("fork", "forkpty", "uname", "getuid", "geteuid"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGXFSZ", "SIGUSR1", "pthread_sigmask", "setitimer", "alarm"):
    if hasattr(signal, name):
        delattr(signal, name)
import importlib, pkgutil
import attnlimit
names = [one.name for one in pkgutil.walk_packages(attnlimit.__path__, "attnlimit.")]
for name in names:
    importlib.import_module(name)
from attnlimit.models.see.memory import available_memory
from attnlimit.studies import run_study, study_from
available_memory(torch.device("cpu"))
study = study_from({"name": "p", "kind": "probe", "grid": {"value": [1, 2, 3]}})
assert run_study(study, "run").done == 3
assert run_study(study, "run").reused == 3
print(len(names), "modules")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="plays another system")
def test_nothing_of_unix_alone_is_needed() -> None:
    for package in ("accelerate", "distributed", "matplotlib", "numba", "pyarrow", "transformers"):
        pytest.importorskip(package)
    ended = subprocess.run([sys.executable, "-c", LACKING], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[0]) > 250


def text_without_encoding(tree: ast.AST) -> Iterator[int]:
    """Lines where text is read or written as the system likes."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(one.arg == "encoding" for one in node.keywords):
            continue
        called = node.func
        if isinstance(called, ast.Attribute):
            name, owner = called.attr, called.value.id if isinstance(called.value, ast.Name) else ""
        elif isinstance(called, ast.Name):
            name, owner = {"open": "open"}.get(called.id, ""), ""
        else:
            continue
        given = [
            one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        opened = name == "open" and owner not in ("os", "bz2") and not any("b" in one for one in given[-1:])
        if opened or name in ("read_text", "write_text"):
            yield node.lineno


def test_text_has_an_encoding_wherever_it_is_read_or_written() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in text_without_encoding(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found
    bad = 'Path("x").read_text(); open("x"); open("x", "rb"); Path("x").open("w")'
    assert len(list(text_without_encoding(ast.parse(bad)))) == 3
