"""Comfort in the shell: help on one screen, completion, JSON, exit codes."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from attnlimit.cli import PANELS, app

ROOT = Path(__file__).parents[2]
COMMANDS = {
    name: getattr(import_module(f"attnlimit.cli.{name}"), name)
    for commands in PANELS.values()
    for name in commands
}
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
        for command, words in commands.items():
            assert any(command in line and words in line for line in lines), command


def test_all_commands_are_in_a_panel():
    assert {command.name for command in typer.main.get_command(app).commands.values()} == set(COMMANDS)


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
    source = inspect.getsource(sys.modules[inspect.unwrap(COMMANDS[name]).__module__])
    if name in NO_TABLE:
        assert not re.search(r"\b[tT]able\(", source)
    else:
        assert "--json" in help_of(name)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_explained(name):
    for parameter in typer.main.get_command(app).commands[name].params:
        assert getattr(parameter, "help", None), parameter.name


def test_exit_codes_are_documented():
    assert "Exit codes: 0 done, 1 failed, 2 unusable input, 130 interrupted." in help_of()
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    for code in ("| 0 |", "| 1 |", "| 2 |", "| 130 |"):
        assert code in page
