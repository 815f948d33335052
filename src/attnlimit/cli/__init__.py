"""The command line: one command a file."""

from __future__ import annotations

from typing import Annotated

import typer

from attnlimit import __version__
from attnlimit.cli.analyze import analyze
from attnlimit.cli.bound import bound
from attnlimit.cli.budget import budget
from attnlimit.cli.cite import cite
from attnlimit.cli.complexity import complexity
from attnlimit.cli.curve import curve
from attnlimit.cli.export import export
from attnlimit.cli.phase import phase
from attnlimit.cli.report import report
from attnlimit.cli.runs import runs
from attnlimit.cli.sweep import sweep
from attnlimit.cli.verify import verify

app = typer.Typer(
    name="attnlimit",
    help="What attention becomes with infinitely many tokens, and how far n tokens are from it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
MODELS, THEORY, STUDIES, MORE = "Models", "Token laws", "Studies", "More"
app.command(rich_help_panel=MODELS)(analyze)
app.command(rich_help_panel=MODELS)(budget)
app.command(rich_help_panel=MODELS)(verify)
app.command(rich_help_panel=MODELS)(report)
app.command(rich_help_panel=THEORY)(curve)
app.command(rich_help_panel=THEORY)(complexity)
app.command(rich_help_panel=THEORY)(phase)
app.command(rich_help_panel=THEORY)(bound)
app.command(rich_help_panel=STUDIES)(sweep)
app.command(rich_help_panel=STUDIES)(runs)
app.command(rich_help_panel=STUDIES)(export)
app.command(rich_help_panel=MORE)(cite)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"attnlimit {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """What attention becomes with infinitely many tokens, and how far n tokens are from it."""
