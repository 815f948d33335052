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
from attnlimit.cli.doctor import doctor
from attnlimit.cli.export import export
from attnlimit.cli.phase import phase
from attnlimit.cli.report import report
from attnlimit.cli.reproduce import reproduce
from attnlimit.cli.runs import runs
from attnlimit.cli.sweep import sweep
from attnlimit.cli.verify import verify

app = typer.Typer(
    name="attnlimit",
    help="What attention becomes with infinitely many tokens, and how far n tokens are.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 failed, 2 unusable input, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
MODELS, THEORY, STUDIES = "Models", "Token laws", "Studies and tools"
app.command(rich_help_panel=MODELS, short_help="Keys that every head of a model needs on a text, exactly.")(
    analyze
)
app.command(
    rich_help_panel=MODELS, short_help="A budget file: the keys of every head for an error or a total."
)(budget)
app.command(rich_help_panel=MODELS, short_help="The model with budgets against the full one, and a verdict.")(
    verify
)
app.command(rich_help_panel=MODELS, short_help="A run as one HTML file.")(report)
app.command(rich_help_panel=THEORY, short_help="Error of n-token attention against its limit, for each n.")(
    curve
)
app.command(rich_help_panel=THEORY, short_help="Least number of tokens n(ε) for an error ε.")(complexity)
app.command(rich_help_panel=THEORY, short_help="Error over score spread and n, and where averaging ends.")(
    phase
)
app.command(rich_help_panel=THEORY, short_help="What can be proved for n tokens.")(bound)
app.command(rich_help_panel=STUDIES, short_help="Run a study, on one core or a cluster; stopped ones go on.")(
    sweep
)
app.command(rich_help_panel=STUDIES, short_help="List the runs of studies and where they stand.")(runs)
app.command(
    rich_help_panel=STUDIES, short_help="Tables, summary and figures of a study, also a running one."
)(export)
app.command(rich_help_panel=STUDIES, short_help="BibTeX of the works behind attnlimit.")(cite)
app.command(rich_help_panel=STUDIES, short_help="What is installed, missing and found on this machine.")(
    doctor
)


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
    """What attention becomes with infinitely many tokens, and how far n tokens are."""
