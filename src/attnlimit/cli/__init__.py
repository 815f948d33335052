"""The command line: one command a file."""

from __future__ import annotations

from typing import Annotated

import typer

from attnlimit import __version__
from attnlimit.cli.boundary import DEBUG, Boundary

app = typer.Typer(
    name="attnlimit",
    cls=Boundary,
    help="What attention becomes with infinitely many tokens, and how far n tokens are.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 failed, 2 unusable input, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "Models": {
        "analyze": "Keys that every head of a model needs on a text, exactly.",
        "budget": "A budget file: the keys of every head for an error or a total.",
        "verify": "The model with budgets against the full one, and a verdict.",
        "compare": "Budgets beside other methods that read as many keys.",
        "downstream": "The model's task against the keys of its heads.",
        "explain": "What every head reads, its roles, and how sure that is.",
        "report": "A run as one HTML file.",
    },
    "Token laws": {
        "curve": "Error of n-token attention against its limit, for each n.",
        "complexity": "Least number of tokens n(ε) for an error ε.",
        "phase": "Error over score spread and n, and where averaging ends.",
        "bound": "What can be proved for n tokens.",
    },
    "Studies and tools": {
        "sweep": "Run a study, on one core or a cluster; stopped ones go on.",
        "icl": "Train on finite prompts, against the infinite-prompt limit.",
        "reproduce": "Published results, measured against predicted.",
        "runs": "List the runs of studies and where they stand.",
        "export": "Tables, summary and figures of a study, also a running one.",
        "doctor": "What is installed, missing and found on this machine.",
        "cite": "BibTeX of the works behind attnlimit.",
    },
}
"""Each command, which is the function of that name in the file of that name, with its line in `attnlimit --help`, which fits one
screen and imports no command."""
for panel, commands in PANELS.items():
    for command, line in commands.items():
        app.command(command, rich_help_panel=panel, short_help=line)(lambda: None)


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
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
) -> None:
    """What attention becomes with infinitely many tokens, and how far n tokens are."""
