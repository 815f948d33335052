"""attnlimit sweep: run a study, and go on with one that was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attnlimit.cli.common import AsJson, err, guarded, out, print_json, table, time_of
from attnlimit.errors import InputError, MissingExtra
from attnlimit.files.records import write_text
from attnlimit.numerics.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnlimit.studies import Finished, Stop, Study
    from attnlimit.studies import Progress as Done
    from attnlimit.studies.executors import Executor

SHOWN = 24


@guarded
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
    folder: Annotated[
        Path | None, typer.Option("--out", help="Run directory (default: attnlimit-out/NAME).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a study, on one core or on a cluster; run it again to go on where it was stopped.

    Every finished task is kept at once. A changed study reuses the tasks that did not change.
    Exit code: 0 all done, 1 some tasks failed, 2 it could not run, 130 stopped.
    """
    from attnlimit.studies import run_study
    from attnlimit.studies.machine import cores

    study, folder = _study(source, folder, quick, resume)
    workers = workers or max(1, cores() // study.threads)
    if dry_run:
        _say_estimate(study, workers, folder, as_json)
        return
    with _bar(study.name) as step:
        finished = run_study(study, folder, lambda stop: _executor(stop, study, workers, dask), report=step)
    if finished.interrupted and finished.done < finished.total:
        _stopped(finished)
    record = _derived(folder)
    if as_json:
        print_json(record)
    else:
        _say(record, folder)
    if finished.failed:
        _failed(finished, record["failures"])


def _study(source: Path, folder: Path | None, quick: bool, resume: bool) -> tuple[Study, Path]:
    """The study and its run directory, from a specification or from a run."""
    from attnlimit.studies import load_study, open_run

    if source.is_dir():
        if quick or (folder is not None and folder.resolve() != source.resolve()):
            raise InputError(f"{source} is a run, with its study and place: leave --quick and --out out.")
        with open_run(source) as run:
            return run.study, source
    study = load_study(source, quick=quick)
    folder = folder or Path("attnlimit-out") / study.name
    if resume and not (folder / "store.sqlite").is_file():
        raise InputError(f"There is no run to resume in {folder}: leave --resume out to start one.")
    return study, folder


def _executor(stop: Stop, study: Study, workers: int, dask: str | None) -> Executor:
    from attnlimit.studies import Processes, Serial, connect
    from attnlimit.studies.spec import labels

    if dask is None:
        if study.resources:
            raise InputError(
                f"The study asks for workers with {study.resources}: they are Dask's, use --dask."
            )
        return Serial(stop) if workers == 1 else Processes(workers, study.threads)
    cluster = connect(dask, workers, study.threads, labels(study))
    err.print(f"Dask dashboard: {cluster.dashboard}", highlight=False, markup=False)
    return cluster


@contextmanager
def _bar(name: str) -> Iterator[Callable[[Done], None]]:
    """Tasks done, rate, time left and failures, on a terminal only."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}", style="red"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(name, total=None, rate="", failed="")

        def step(now: Done) -> None:
            speed = bar.tasks[task].speed
            bar.update(
                task,
                completed=now.done,
                total=now.total,
                rate="" if speed is None else f"{speed:.3g} tasks/s",
                failed=f"{now.failed} failed" if now.failed else "",
            )

        yield step


def _derived(folder: Path) -> dict[str, Any]:
    """The table, the summary, the figures and the report, made from the store."""
    from attnlimit.report.figures.study import figures
    from attnlimit.report.figures.style import save
    from attnlimit.report.html import page
    from attnlimit.report.html.study import study_page
    from attnlimit.studies import derive, open_run

    with open_run(folder) as run:
        record = derive(run)
    try:
        for name, figure in figures(record).items():
            save(figure, folder / "figures" / f"{name}.png")
    except MissingExtra as missing:
        err.print(f"No figures: {missing}", highlight=False, markup=False)
    write_text(folder / "report.html", page(study_page(record)))
    return record


def _say(record: dict[str, Any], folder: Path) -> None:
    points = record["points"]
    if points:
        varies = list(points[0]["varies"])
        rows = [
            [*(str(point["varies"][path]) for path in varies), *map(str, _numbers(point).values())]
            for point in points[:SHOWN]
        ]
        title = f"{record['study']['name']}: {record['done']:,} of {record['total']:,} tasks"
        out.print(
            table(escape(title), [*(path.rpartition(".")[2] for path in varies), *_numbers(points[0])], rows)
        )
    if len(points) > SHOWN:
        out.print(f"… and {len(points) - SHOWN:,} more points, see summary.json.", highlight=False)
    drawn = ", ".join(f"figures/{path.name}" for path in sorted((folder / "figures").glob("*.png")))
    files = f"report.html, summary.json, results.parquet{', ' if drawn else ''}{drawn}"
    out.print(f"Run: {folder} ({files})", highlight=False, markup=False, soft_wrap=True)


def _numbers(point: dict[str, Any]) -> dict[str, str]:
    """What a line of the table says of a point."""
    told: dict[str, str] = {}
    if "replicates" in point:
        told["replicates"] = f"{point['replicates']:,}"
    if point.get("rms"):
        told[f"rms at {point['n'][-1]:,}"] = f"{point['rms'][-1]:.4g}"
    if "risk" in point:
        told[f"risk at L = {point['lengths'][-1]:,}"] = f"{point['risk'][-1]:.4g}"
    if "fit" in point:
        fit = point["fit"]
        told["exponent"] = "–" if fit is None else f"{fit['exponent']:.3f}"
        told["95 %"] = "–" if fit is None else "{:.3f}…{:.3f}".format(*fit["interval"])
    if point.get("rates") is not None:
        sharp = {"map": "mean", None: "rms"}.get(
            point.get("statistic")
        )  # an exact curve is one of rms errors
        told["n → ∞"] = (
            f"≥ {point['rates']['paper']:.3f}" if sharp is None else f"{point['rates'][sharp]:.3f}"
        )
    return told


def _stopped(finished: Finished) -> NoReturn:
    """Tables and figures are not made now: whoever stops a run wants it to end."""
    err.print(
        f"Stopped with {finished.done:,} of {finished.total:,} tasks done, all kept. "
        f"Go on: attnlimit sweep {finished.folder} --resume",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    raise typer.Exit(130)


def _failed(finished: Finished, failures: list[dict[str, Any]]) -> NoReturn:
    last = failures[-1]
    line = last["message"].strip().splitlines()[-1]
    err.print(
        f"{counted(finished.failed, 'task')} failed; the last {last['how']}: {line}\n"
        "All tracebacks are in summary.json, under failures. "
        f"Try again: attnlimit sweep {finished.folder} --resume",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    raise typer.Exit(1)


def _say_estimate(study: Study, workers: int, folder: Path, as_json: bool) -> None:
    from attnlimit.studies import estimate

    found = estimate(study, workers, folder)
    if as_json:
        print_json({"study": study.model_dump(mode="json"), **found.to_dict()})
        return
    count = f"{found.tasks:,}" + (f" to {found.most_tasks:,}" if found.most_tasks > found.tasks else "")
    rows = [
        ("points", f"{found.points:,}"),
        ("tasks", count),
        ("already there", f"{found.done:,}"),
        (f"time on {counted(workers, 'process')}", time_of([found])),
        ("memory of each", "unknown" if found.memory_mb is None else f"{found.memory_mb:,.0f} MB"),
    ]
    out.print(table(escape(f"{study.name}: {study.kind}"), ["", "estimate"], rows))
    out.print(
        f"Estimated from {found.calibration}. Run directory: {folder}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
