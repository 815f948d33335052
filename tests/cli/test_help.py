"""Comfort in the shell: help on one screen, completion, JSON, exit codes."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnlimit.cli import PANELS, app
from attnlimit.cli.boundary import command
from attnlimit.cli.law_options import sized_laws

ROOT = Path(__file__).parents[2]
COMMANDS = [name for commands in PANELS.values() for name in commands]
NO_TABLE = {"cite", "export", "report"}
"""These write a file or a text, and print no table."""


def help_of(*words: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(columns), "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_help_fits_one_screen_with_every_command_on_one_line():
    lines = help_of().rstrip().splitlines()
    assert len(lines) <= 41
    assert max(map(len, lines)) <= 80
    for panel, commands in PANELS.items():
        assert any(panel in line for line in lines)
        for name, words in commands.items():
            assert any(name in line and words in line for line in lines), name


def test_all_commands_are_in_a_panel():
    """A file with a function of its name is a command."""
    files = {file.stem for file in (ROOT / "src" / "attnlimit" / "cli").glob("[a-z]*.py")}
    assert {name for name in files if hasattr(import_module(f"attnlimit.cli.{name}"), name)} == set(COMMANDS)


def test_help_does_not_wait_for_torch():
    """Also that of every command; what computes is not even there."""
    code = f"""
import sys
sys.modules |= dict.fromkeys(["torch", "numpy", "scipy", "numba", "matplotlib"])
from typer.testing import CliRunner
from attnlimit.cli import app
for words in ["--help"], ["--version"], *([name, "-h"] for name in {COMMANDS}):
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, (words, told.output, told.exception)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_typing_error_names_the_nearest_command():
    told = CliRunner().invoke(app, ["curv"])
    assert told.exit_code == 2
    assert "Did you mean 'curve'?" in told.stderr


def test_the_laws_are_in_the_help_of_their_option():
    *names, last = sized_laws()
    assert f"Token law: {', '.join(names)} or {last}." in " ".join(help_of("curve", columns=200).split())


def test_no_arguments_is_help():
    result = CliRunner().invoke(app, [])
    assert "Usage: attnlimit" in result.output


def test_completion_is_offered():
    assert "--install-completion" in help_of()
    assert "--show-completion" in help_of()


def test_completion_knows_the_commands():
    words = {"_ATTNLIMIT_COMPLETE": "complete_bash", "COMP_WORDS": "attnlimit co", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], prog_name="attnlimit", env=words)
    assert done.stdout.split() == ["compare", "complexity"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_commands_that_print_tables_print_json(name):
    source = inspect.getsource(import_module(f"attnlimit.cli.{name}"))
    if name in NO_TABLE:
        assert not re.search(r"\b[tT]able\(", source)
    else:
        assert "--json" in help_of(name)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_explained(name):
    for parameter in command(name).params:
        assert getattr(parameter, "help", None), parameter.name


def test_exit_codes_are_documented():
    assert "Exit codes: 0 done, 1 failed, 2 unusable input, 130 interrupted." in help_of()
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    for code in ("| 0 |", "| 1 |", "| 2 |", "| 130 |"):
        assert code in page
