"""What a study will cost, before it is run: tasks, and time and memory from a few small ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from attnlimit.errors import InputError
from attnlimit.inputs import Count
from attnlimit.numerics.words import counted
from attnlimit.studies.coordinator import replicates_for
from attnlimit.studies.executors.processes import Processes
from attnlimit.studies.kind import kind
from attnlimit.studies.spec import Study, Task, count_points, count_tasks, most_replicates, points, tasks
from attnlimit.studies.store import NAME
from attnlimit.studies.view import open_run
from attnlimit.studies.work import Ended, unpack

SAMPLED, LIMIT = 3, 30.0
"""Points tried, and seconds that all of it may take."""


@dataclass(frozen=True)
class Cost:
    """`seconds`, `likely_seconds` and `most_seconds` differ when a precision is asked for: without further rounds, with those
    that the tried points would need, and with all. None: no task that was tried ended in time; `longer`: some did not, so the
    study takes longer than this."""

    points: int
    tasks: int
    most_tasks: int
    done: int
    workers: int
    seconds: float | None
    likely_seconds: float | None
    most_seconds: float | None
    memory_mb: float | None
    """Of one worker, at its peak."""
    calibration: str
    longer: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self)}


def estimate(study: Study, workers: Count, folder: Path | None = None) -> Cost:
    """The cost on `workers` processes of this machine; what `folder` has already is not counted in the time."""
    count, most = study.replicates, most_replicates(study)
    each = count_tasks(study, count)
    each_most = each + count_tasks(study, most - count)
    total, done = count_points(study), _done(study, folder)
    if done == total * each and study.precision is None:
        return Cost(total, done, done, done, workers, 0.0, 0.0, 0.0, None, "nothing: it is all there")
    tried, memory, words = _calibrated(study)
    there = count * done / (total * each)  # replicates of a point, on average

    def cost(replicates: Sequence[int]) -> float | None:
        spent = [one.seconds * max(0.0, k - there) for one, k in zip(tried, replicates, strict=True)]
        return total * sum(spent) / len(spent) / workers if spent else None

    seconds, highest = (cost([k] * len(tried)) for k in (count, most))
    likely = cost([min(max(one.replicates, count), most) for one in tried])
    told = (seconds, likely, highest, memory, words, len(tried) < len(_wanted(total)))
    return Cost(total, total * each, total * each_most, done, workers, *told)


def _wanted(points: int) -> set[int]:
    """The points that are tried: the first, the last and one between."""
    return {round(k * (points - 1) / max(1, SAMPLED - 1)) for k in range(SAMPLED)}


class Tried(NamedTuple):
    """A point of which a task was run: its seconds a replicate, and the replicates that its precision asks for."""

    seconds: float
    replicates: int


def _done(study: Study, folder: Path | None) -> int:
    """Tasks of the first round whose results are there."""
    if folder is None or not (folder / NAME).is_file():
        return 0
    with open_run(folder) as run:
        known = {row[0] for row in run.rows("SELECT id FROM results")}
    return sum(task.id in known for what in points(study) for task in tasks(study, what, 0, study.replicates))


def _samples(study: Study) -> Iterator[tuple[Task, float]]:
    """A few tasks, spread over the points: as small as they can be, but whole if their precision is asked for; and how many times as
    long a point takes with as many replicates."""
    found, wanted = kind(study.kind), _wanted(count_points(study))
    for index, what in enumerate(points(study)):
        if index in wanted:
            first = next(tasks(study, what, 0, study.replicates))
            least = found.tried if study.precision is None else first.count
            part, times = found.model_validate(what).brief()
            yield replace(first, what=part.model_dump(mode="json"), count=min(first.count, least)), times


def _calibrated(study: Study) -> tuple[list[Tried], float | None, str]:
    """(what was tried, peak memory of a worker in MB, in words how they were got)."""
    samples = list(_samples(study))
    samples.insert(0, samples[0])  # the first one also pays for what is loaded or compiled once
    pool = Processes(1, study.threads)
    try:
        ended = time.monotonic() + LIMIT
        for place, (task, _) in enumerate(samples):
            pool.submit(place, task.to_bytes())
        outcomes: dict[int, Ended] = {}
        while len(outcomes) < len(samples) and time.monotonic() < ended:
            outcomes |= {outcome.place: outcome for outcome in pool.collect(0.2)}
        memory = _peak(pool.pids[0])
    finally:
        pool.close()
    _refuse_failed(outcomes)
    tried = [_tried(study, *samples[place], outcomes[place]) for place in sorted(outcomes) if place > 0]
    size = f"of {counted(samples[0][0].count, 'replicate')}"
    if not tried:
        return [], memory, f"no task {size} ended within {LIMIT:g} s"
    return tried, memory, f"{counted(len(tried), 'task')} {size}, this machine"


def _tried(study: Study, task: Task, times: float, outcome: Ended) -> Tried:
    wanted = study.replicates
    if study.precision is not None:
        told = replicates_for(study, [unpack(kind(task.kind), outcome.body)], task.what, task.count)
        wanted = study.precision.max_replicates if told is None else told
    return Tried(times * outcome.seconds / task.count, wanted)


def _refuse_failed(outcomes: dict[int, Ended]) -> None:
    for outcome in outcomes.values():
        if outcome.how != "done":
            last = outcome.body.decode(errors="replace").strip().splitlines()[-1]
            raise InputError(f"A task that was tried failed, so the study would too: {last}")


def _peak(pid: int) -> float | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None  # not Linux
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
