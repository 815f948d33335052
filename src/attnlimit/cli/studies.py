"""What `sweep`, `runs` and `export` do; imported when one of them is called, since studies need an extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import typer

from attnlimit.cli.common import cell, err, out, print_json, progress, table, time_of
from attnlimit.errors import InputError, MissingExtra
from attnlimit.files.records import write_json, write_text
from attnlimit.numerics.words import counted
from attnlimit.report.figures.study import StudyFigure, study_pictures
from attnlimit.report.figures.style import save
from attnlimit.report.html.page import page
from attnlimit.report.html.study import shown_table, study_page
from attnlimit.studies import (
    Findings,
    Processes,
    Serial,
    Stop,
    Study,
    StudyRun,
    connect,
    derive,
    estimate,
    export,
    load_study,
    open_run,
    run_study,
    summary,
)
from attnlimit.studies.executors import Executor
from attnlimit.studies.machine import cores
from attnlimit.studies.spec import labels
from attnlimit.studies.store import NAME, in_words
from attnlimit.studies.view import SUMMARY

SHOWN = 24


def study_of(source: Path, folder: Path | None, quick: bool, resume: bool) -> tuple[Study, Path]:
    """The study and its run directory, from a specification or from a run."""
    if source.is_dir():
        if quick or (folder is not None and folder.resolve() != source.resolve()):
            raise InputError(f"{source} is a run, with its study and place: leave --quick and --out out.")
        with open_run(source) as run:
            return run.study, source
    study = load_study(source, quick=quick)
    folder = folder or Path("attnlimit-out") / study.name
    if resume and not (folder / NAME).is_file():
        raise InputError(f"There is no run to resume in {folder}: leave --resume out to start one.")
    return study, folder


def tell(found: Findings, folder: Path, as_json: bool) -> None:
    """What was found, as a table or as JSON."""
    if as_json:
        print_json(summary(found))
    else:
        _say(found, folder)


def go(
    study: Study,
    folder: Path,
    workers: int | None,
    dask: str | None,
    as_json: bool,
    tell: Callable[[Findings, Path, bool], None] = tell,
) -> None:
    """Run it, write what follows from the store, tell what was found and how it ended."""
    count = workers or _processes(study)
    with progress(study.name, rate_of="tasks") as step:
        finished = run_study(
            study, folder, lambda stop: _executor(stop, study, count, dask), report=lambda now: step(*now)
        )
    if finished.interrupted and finished.done < finished.total:
        # tables and figures are not made now: whoever stops a run wants it to end
        why = f"Stopped with {finished.done:,} of {finished.total:,} tasks done, all kept."
        _leave(why, "Go on", folder, 130)
    found = _derived(folder)
    tell(found, folder, as_json)
    if finished.failed:
        last = found.failures[-1]
        why = f"{counted(finished.failed, 'task')} failed; the last {last.how}: {last.last_line}\n"
        _leave(f"{why}All tracebacks are in summary.json, under failures.", "Try again", folder, 1)


def _processes(study: Study) -> int:
    return max(1, cores() // study.threads)


def _executor(stop: Stop, study: Study, workers: int, dask: str | None) -> Executor:
    if dask is None:
        if study.resources:
            raise InputError(
                f"The study asks for workers with {study.resources}: they are Dask's, use --dask."
            )
        alone = (
            workers == 1 and study.task_seconds is None
        )  # a task can only be ended in a process of its own
        return Serial(stop) if alone else Processes(workers, study.threads, study.task_seconds)
    cluster = connect(dask, workers, study.threads, labels(study), study.task_seconds)
    err.print(f"Dask dashboard: {cluster.dashboard}")
    return cluster


def _derived(folder: Path) -> Findings:
    """The table, the summary, the figures and the report, made from the store."""
    made: list[StudyFigure] = []
    with open_run(folder) as run:
        found = derive(run)
    try:
        made = study_pictures(found.study.name, found.points)
        _save(made, folder)
    except MissingExtra as missing:
        err.print(f"No figures: {missing}")
    write_text(folder / "report.html", page(study_page(found, made)))
    return found


def _save(made: list[StudyFigure], folder: Path) -> list[Path]:
    return [save(one.figure, folder / "figures" / f"{one.name}.png") for one in made]


def written(run: StudyRun, form: str, file: Path | None) -> list[Path]:
    """The files of one format of a run's export."""
    if form == "json":
        path = file or run.folder / SUMMARY
        with in_words(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            return [write_json(path, summary(run.findings()))]
    if form == "figures":
        found = run.findings()
        return _save(study_pictures(found.study.name, found.points), run.folder)
    return [export(run, file or run.folder / f"results.{form}")]


def _say(found: Findings, folder: Path) -> None:
    told = shown_table(found)
    if told.rows:
        title = f"{found.study.name}: {found.done:,} of {found.total:,} tasks"
        differ = [k for k in range(len(told.columns)) if len({row[k] for row in told.rows}) > 1]
        rows = [[row[k] for k in differ] for row in told.rows[:SHOWN]]
        out.print(table(title, [told.columns[k] for k in differ], rows) if differ else title)
        same = [
            f"{name} {cell(told.rows[0][k])}" for k, name in enumerate(told.columns) if k not in differ
        ]  # would only make the table too wide
        if same:
            every = "On every line: " if differ else ""
            out.print(f"{every}{', '.join(same)}.", soft_wrap=True)
    if len(told.rows) > SHOWN:
        out.print(f"… and {len(told.rows) - SHOWN:,} more lines, see report.html.")
    drawn = ", ".join(f"figures/{path.name}" for path in sorted((folder / "figures").glob("*.png")))
    files = f"report.html, summary.json, results.parquet{', ' if drawn else ''}{drawn}"
    out.print(f"Run: {folder} ({files})")


def _leave(why: str, advice: str, folder: Path, code: int) -> NoReturn:
    words = f"{why} {advice}: attnlimit sweep {folder} --resume"
    err.print(words)
    raise typer.Exit(code)


def say_estimate(study: Study, workers: int | None, folder: Path, as_json: bool) -> None:
    workers = workers or _processes(study)
    found = estimate(study, workers, folder)
    if as_json:
        print_json({"study": study.model_dump(mode="json"), **found.to_dict()})
        return
    count = f"{found.tasks:,}" + (f" to {found.most_tasks:,}" if found.most_tasks > found.tasks else "")
    rows = [
        ("points", f"{found.points:,}"),
        ("tasks", count),
        ("already there", f"{found.done:,}"),
        (f"time on {counted(workers, 'process')}", time_of(found)),
        ("memory of each", "unknown" if found.memory_mb is None else f"{found.memory_mb:,.0f} MB"),
    ]
    out.print(table(f"{study.name}: {study.kind}", ["", "estimate"], rows))
    told = f"Estimated from {found.calibration}. Run directory: {folder}"
    out.print(told)
