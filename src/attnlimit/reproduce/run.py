"""Running a reproduction: its studies one after the other, then figure, table and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path

from attnlimit.errors import AttnlimitError
from attnlimit.inputs import as_count
from attnlimit.reproduce.catalogue import find
from attnlimit.reproduce.result import Reproduction, Verdict
from attnlimit.reproduce.write import Record, write
from attnlimit.studies import (
    Cost,
    Findings,
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


class Interrupted(AttnlimitError):
    """A run was stopped; what was finished is kept, and the same call goes on."""


class TasksFailed(AttnlimitError, RuntimeError):
    """Some tasks of a study failed, so there is nothing to compare with the claim."""


@dataclass(frozen=True)
class Prepared:
    """The studies of a result and where they go."""

    result: Reproduction
    folder: Path
    studies: dict[str, Study]
    quick: bool
    workers: int
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """What each study will cost, once estimated."""

    def run_folder(self, spec: str) -> Path:
        return self.folder / "runs" / spec

    def estimated(self) -> Prepared:
        """The same with its costs, from a few small tasks that are run for it."""
        costs = {
            name: estimate(study, self._processes(study), self.run_folder(name))
            for name, study in self.studies.items()
        }
        return replace(self, costs=costs)

    def _processes(self, study: Study) -> int:
        return max(1, self.workers // study.threads)

    def executor(self, stop: Stop, spec: str) -> Executor:
        """Processes, unless they would take longer to start than the work takes."""
        study, cost = self.studies[spec], self.costs.get(spec)
        count = self._processes(study)
        short = cost is not None and cost.most_seconds is not None and cost.most_seconds * count < SHORT
        return Serial(stop) if count == 1 or short else Processes(count, study.threads)


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
    """The studies of a result, read and checked; nothing is run.

    A quick one has a folder of its own, and runs in this process unless `workers` are asked for: they would take longer to
    start. Others have one process a core.
    """
    result = find(name)
    count = (1 if quick else cores()) if workers is None else as_count(workers, "workers")
    folder = Path(out) / (f"{name}-quick" if quick else name)
    return Prepared(
        result, folder, {spec: load_spec(spec, quick=quick) for spec in result.specs}, quick, count
    )


def load_spec(spec: str, *, quick: bool = False) -> Study:
    """A study of this package."""
    with as_file(files("attnlimit.reproduce") / "specs" / f"{spec}.yaml") as path:
        return load_study(path, quick=quick)


def run(
    name: str | Prepared,
    *,
    quick: bool = False,
    out: str | Path = OUT,
    workers: int | None = None,
    progress: Callable[[str, Progress], object] | None = None,
) -> Reproduced:
    """Run what is not there yet of a result's studies, and write figure, table and verdicts to out/name.

    `progress` is called with the name of the study and how far it is. A run that was stopped goes on where it was; with
    everything done, only the files are written again.
    """
    ready = name if isinstance(name, Prepared) else prepare(name, quick=quick, out=out, workers=workers)
    runs = {}
    for spec, study in ready.studies.items():
        runs[spec] = _found(ready, spec, study, progress)
    verdicts = tuple(ready.result.verdicts(runs))
    record, written = write(ready.folder, ready.result, runs, verdicts, ready.quick)
    return Reproduced(ready.result.name, ready.folder, verdicts, tuple(written), record)


def _found(
    ready: Prepared, spec: str, study: Study, progress: Callable[[str, Progress], object] | None
) -> Findings:
    folder = ready.run_folder(spec)
    finished = run_study(
        study,
        folder,
        lambda stop: ready.executor(stop, spec),
        report=None if progress is None else lambda now: progress(spec, now),
    )
    with open_run(folder) as opened:
        if finished.done < finished.total:
            raise _unfinished(finished, opened.failures())
        return derive(opened)


def _unfinished(finished: Finished, failures: Sequence[Failure]) -> AttnlimitError:
    if finished.interrupted:
        return Interrupted(f"Stopped with {finished.done:,} of {finished.total:,} tasks done, all kept.")
    last = failures[-1].last_line if failures else "unknown"
    return TasksFailed(
        f"{finished.total - finished.done} of {finished.total} tasks of {finished.folder} failed; the last: {last}"
    )
