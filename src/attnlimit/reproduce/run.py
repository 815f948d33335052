"""Running a reproduction: its study, then figure, table and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from attnlimit import discover
from attnlimit.errors import AttnlimitError, InputError
from attnlimit.inputs import as_count
from attnlimit.reproduce.result import Reproduction, Verdict
from attnlimit.reproduce.write import Record, write
from attnlimit.studies import (
    Cost,
    Finished,
    Processes,
    Progress,
    Serial,
    Stop,
    Study,
    derive,
    estimate,
    load_study,
    open_run,
    run_study,
)
from attnlimit.studies.executors import Executor
from attnlimit.studies.machine import cores
from attnlimit.studies.view import Failure

OUT = "attnlimit-out/reproduce"
SHORT = 10.0
"""Seconds of work that are not worth a process of their own."""


ORDER = [
    "gaussian",
    "sphere",
    "bert",
    "bigbird-iid",
    "bigbird-window",
    "downstream",
    "downstream-by-horizon",
    "token-cloud",
    "icl-risk",
    "icl-trajectory",
    "gradient-concentration",
    "sharp-rates",
    "phase-diagram",
    "uniform-constant",
    "moment-constant",
    "hardmax-log-rate",
    "gaussian-exact",
    "exact-law",
    "different-keys",
    "two-heads",
]
"""In which they are listed: that of the papers, then ours, then any others."""


@cache
def _results() -> dict[str, Reproduction]:
    found = {one.name: one for some in discover.members("attnlimit.reproduce", "RESULTS") for one in some}
    listed = [name for name in ORDER if name in found]
    return {name: found[name] for name in (*listed, *sorted(set(found) - set(listed)))}


def names() -> tuple[str, ...]:
    """The names of all results."""
    return tuple(_results())


def find(name: str) -> Reproduction:
    """The result of that name.

    >>> find("sharp-rates").source
    'attnlimit'
    """
    if name not in _results():
        raise InputError(
            f"There is no result {name!r} to reproduce: use all, or one of {', '.join(names())}."
        )
    return _results()[name]


class Interrupted(AttnlimitError):
    """A run was stopped; what was finished is kept, and the same call goes on."""


class TasksFailed(AttnlimitError, RuntimeError):
    """Some tasks of a study failed, so there is nothing to compare with the claim."""


@dataclass(frozen=True)
class Prepared:
    """The study of a result and where it goes."""

    result: Reproduction
    folder: Path
    study: Study
    quick: bool
    workers: int
    cost: Cost | None = None
    """What the study will cost, once estimated."""

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / self.result.name

    @property
    def processes(self) -> int:
        return max(1, self.workers // self.study.threads)

    def estimated(self) -> Prepared:
        """The same with its cost, from a few small tasks that are run for it."""
        return replace(self, cost=estimate(self.study, self.processes, self.run_folder))

    def executor(self, stop: Stop) -> Executor:
        """Processes, unless they would take longer to start than the work takes."""
        most = None if self.cost is None else self.cost.most_seconds
        short = most is not None and most * self.processes < SHORT
        serial = self.processes == 1 or short
        return Serial(stop) if serial else Processes(self.processes, self.study.threads)


@dataclass(frozen=True)
class Reproduced:
    """What was found: verdicts, and the files they are in."""

    name: str
    folder: Path
    verdicts: tuple[Verdict, ...]
    files: tuple[Path, ...]
    record: Record
    """What verdict.json holds."""


def prepare(name: str, *, quick: bool = False, out: str | Path = OUT, workers: int | None = None) -> Prepared:
    """The study of a result, read and checked; nothing is run.

    A quick one has a folder of its own, and runs in this process unless `workers` are asked for: they would take longer to
    start. Others have one process a core.
    """
    result = find(name)
    count = (1 if quick else cores()) if workers is None else as_count(workers, "workers")
    folder = Path(out) / (f"{name}-quick" if quick else name)
    return Prepared(result, folder, load_spec(name, quick=quick), quick, count)


def load_spec(name: str, *, quick: bool = False) -> Study:
    """The study of a result."""
    with as_file(files("attnlimit.reproduce") / "specs" / f"{name}.yaml") as path:
        return load_study(path, quick=quick)


def run(
    name: str | Prepared,
    *,
    quick: bool = False,
    out: str | Path = OUT,
    workers: int | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Reproduced:
    """Run what is not there yet of a result's study, and write figure, table and verdicts to out/name.

    A run that was stopped goes on where it was; with everything done, only the files are written again.
    """
    ready = name if isinstance(name, Prepared) else prepare(name, quick=quick, out=out, workers=workers)
    finished = run_study(ready.study, ready.run_folder, ready.executor, report=progress)
    with open_run(ready.run_folder) as opened:
        if finished.done < finished.total:
            raise _unfinished(finished, opened.failures())
        found = derive(opened)
    verdicts = tuple(ready.result.verdicts(found.points))
    record, written = write(ready.folder, ready.result, found, verdicts, ready.quick)
    return Reproduced(ready.result.name, ready.folder, verdicts, tuple(written), record)


def _unfinished(finished: Finished, failures: Sequence[Failure]) -> AttnlimitError:
    if finished.interrupted:
        return Interrupted(f"Stopped with {finished.done:,} of {finished.total:,} tasks done, all kept.")
    last = failures[-1].last_line if failures else "unknown"
    return TasksFailed(
        f"{finished.total - finished.done} of {finished.total} tasks of {finished.folder} failed; the last: {last}"
    )
