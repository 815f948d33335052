"""The command line: one command a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from attnlimit import __version__
from attnlimit.cli.analyze import analyze
from attnlimit.cli.bound import bound
from attnlimit.cli.boundary import DEBUG, Boundary
from attnlimit.cli.budget import budget
from attnlimit.cli.cite import cite
from attnlimit.cli.compare import compare
from attnlimit.cli.complexity import complexity
from attnlimit.cli.curve import curve
from attnlimit.cli.doctor import doctor
from attnlimit.cli.downstream import downstream
from attnlimit.cli.explain import explain
from attnlimit.cli.export import export
from attnlimit.cli.icl import icl
from attnlimit.cli.phase import phase
from attnlimit.cli.report import report
from attnlimit.cli.reproduce import reproduce
from attnlimit.cli.runs import runs
from attnlimit.cli.sweep import sweep
from attnlimit.cli.verify import verify

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
PANELS: dict[str, dict[Callable[..., None], str]] = {
    "Models": {
        analyze: "Keys that every head of a model needs on a text, exactly.",
        budget: "A budget file: the keys of every head for an error or a total.",
        verify: "The model with budgets against the full one, and a verdict.",
        compare: "Budgets beside other methods that read as many keys.",
        downstream: "The model's task against the keys of its heads.",
        explain: "What every head reads, its roles, and how sure that is.",
        report: "A run as one HTML file.",
    },
    "Token laws": {
        curve: "Error of n-token attention against its limit, for each n.",
        complexity: "Least number of tokens n(ε) for an error ε.",
        phase: "Error over score spread and n, and where averaging ends.",
        bound: "What can be proved for n tokens.",
    },
    "Studies and tools": {
        sweep: "Run a study, on one core or a cluster; stopped ones go on.",
        icl: "Train on finite prompts, against the infinite-prompt limit.",
        reproduce: "Published results, measured against predicted.",
        runs: "List the runs of studies and where they stand.",
        export: "Tables, summary and figures of a study, also a running one.",
        doctor: "What is installed, missing and found on this machine.",
        cite: "BibTeX of the works behind attnlimit.",
    },
}
"""Each command with its line in `attnlimit --help`, which fits one screen."""
for panel, commands in PANELS.items():
    for command, line in commands.items():
        app.command(rich_help_panel=panel, short_help=line)(command)


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
