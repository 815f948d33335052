"""attnlimit sweep: run a study, and go on with one that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnlimit.cli.common import AsJson, folder_out


def sweep(
    source: Annotated[Path, typer.Argument(metavar="SPEC|RUN", help="A study in YAML, or a run's folder.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the tasks, estimate time, memory.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, to see that it runs.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that is there.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: one a core; 1 runs in this process).")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="local, a scheduler's address, or a .yaml file for Slurm and others.")
    ] = None,
    folder: Annotated[Path | None, folder_out("Run directory (default: attnlimit-out/NAME).")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a study, on one core or on a cluster; run it again to go on where it was stopped.

    Every finished task is kept at once. A changed study reuses the tasks that did not change.
    Exit code: 0 all done, 1 some tasks failed, 2 it could not run, 130 stopped.
    """
    from attnlimit.cli.studies import go, say_estimate, study_of  # needs an extra

    study, folder = study_of(source, folder, quick, resume)
    if dry_run:
        say_estimate(study, workers, folder, as_json)
    else:
        go(study, folder, workers, dask, as_json)
