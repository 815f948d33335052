"""The loop of a run: hand tasks out, commit what comes back, try again what failed; and where a precision is asked for, further
rounds of tasks, decided by committed results alone, so that a decision comes out the same whatever the order in which they finished."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from attnlimit.errors import InputError, WorkersLost
from attnlimit.files.lock import locked
from attnlimit.inputs import shown
from attnlimit.studies import machine
from attnlimit.studies.executors import Executor, Serial
from attnlimit.studies.executors.processes import check_room
from attnlimit.studies.kind import Result, kind
from attnlimit.studies.spec import Study, count_points, points, rounded, task, tasks
from attnlimit.studies.stop import Stop
from attnlimit.studies.store import Store, Waiting, in_words
from attnlimit.studies.view import describe
from attnlimit.studies.work import Ended, unpack

MARGIN = 1.1
"""The width of an interval is an estimate too: ask for a little more than it says."""


def extend(study: Study, store: Store, point: int) -> int:
    """Add the next round of a point if its tasks are all done and not yet precise enough; how many tasks it has."""
    if study.precision is None or store.lacks(point):
        return 0
    found, known = kind(study.kind), store.results_of(point)
    done = sum(count for count, _ in known)
    what = store.what(point)
    wanted = replicates_for(study, [unpack(found, result) for _, result in known], what, done)
    # the width is an estimate too: at most twice as many
    stop = 2 * done if wanted is None else min(wanted, 2 * done)
    stop = min(done + rounded(study, stop - done), study.precision.max_replicates)
    added = list(tasks(study, what, done, stop)) if stop > done else []
    store.extend(point, added)
    return len(added)


def replicates_for(study: Study, results: Sequence[Result], what: dict[str, object], done: int) -> int | None:
    """How many replicates the asked precision needs, from the width that `done` of them have, which falls like
    1/√replicates; None if they tell no width."""
    precision, found = study.precision, kind(study.kind)
    if precision is None:
        return done
    joined = found.result.joined(results)
    width = found.model_validate(what).half_width(joined, precision.of, precision.level)
    if width <= precision.half_width:
        return done
    return math.ceil(done * MARGIN * (width / precision.half_width) ** 2) if width < math.inf else None


DEATHS, PAGE, TICK = 3, 256, 0.2
CHECKPOINTS = "checkpoints"
"""The folder of the run where long tasks keep theirs."""


class Progress(NamedTuple):
    """Tasks that are safe on disk, tasks in all, tasks that were given up."""

    done: int
    total: int
    failed: int


class Finished(NamedTuple):
    """How a run ended: interrupted, or with so many tasks done and given up."""

    folder: Path
    done: int
    total: int
    failed: int
    interrupted: bool
    reused: int


@dataclass
class Loop:
    """A study on its way through an executor into a store."""

    study: Study
    store: Store
    stop: Stop
    report: Callable[[Progress], object] | None = None
    done: int = 0
    total: int = 0
    failed: int = 0
    _seen: int = 0
    _again: deque[Waiting] = field(default_factory=deque)
    _page: deque[Waiting] = field(default_factory=deque)
    _flying: dict[int, Waiting] = field(default_factory=dict)
    _raised: Counter[int] = field(default_factory=Counter)
    _died: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.done, self.total = self.store.counts()

    def go(self, executor: Executor) -> None:
        self._tell()
        while not self.stop.asked:
            self._hand_out(executor)
            if not self._flying:
                break
            for outcome in executor.collect(TICK):
                self._take(outcome)
            if self.store.sync():
                self._tell()
        self.store.sync(now=True)
        self._tell()

    def _tell(self) -> None:
        if self.report is not None:
            self.report(Progress(self.done, self.total, self.failed))

    def _hand_out(self, executor: Executor) -> None:
        while len(self._flying) < executor.slots:
            row = self._next()
            if row is None:
                return
            self._flying[row.place] = row
            what = json.loads(row.what)
            found = task(self.study, what, row.first, row.replicates, str(self._checkpoints(row)))
            executor.submit(row.place, found.to_bytes())

    def _checkpoints(self, task: Waiting) -> Path:
        return self.store.path.resolve().with_name(CHECKPOINTS) / task.id.hex()[:16]

    def _next(self) -> Waiting | None:
        if self._again:
            return self._again.popleft()
        if not self._page:
            self._page.extend(self.store.waiting(self._seen, PAGE))
        if not self._page:
            return None
        task = self._page.popleft()
        self._seen = task.place
        return task

    def _take(self, outcome: Ended) -> None:
        task = self._flying.pop(outcome.place, None)
        if task is None:
            return
        if outcome.how == "done":
            self.store.record(task.id, outcome.body, outcome.seconds)
            shutil.rmtree(self._checkpoints(task), ignore_errors=True)
            self.done += 1
            self.total += extend(self.study, self.store, task.point)
        elif outcome.how == "lost":
            self._again.append(task)
        else:
            self._failed(task, outcome)

    def _failed(self, task: Waiting, outcome: Ended) -> None:
        """A task that raises is tried as often as the study says; one that kills three workers is set aside."""
        died = outcome.how == "died"
        counter, most = (self._died, DEATHS) if died else (self._raised, self.study.retries + 1)
        counter[task.place] += outcome.deaths
        self.store.record_failure(task.id, outcome.how, outcome.body.decode(errors="replace"))
        if counter[task.place] < most:
            self._again.append(task)
        else:
            self.failed += 1


def run_study(
    study: Study,
    folder: str | Path,
    executor: Callable[[Stop], Executor] | None = None,
    *,
    report: Callable[[Progress], object] | None = None,
    stop: Stop | None = None,
) -> Finished:
    """Run what a study asks for and the run directory does not have yet; returns when all is done, or was stopped.

    `executor` makes the executor (None: serial) once the directory is known to be free. `report` is called with
    numbers that are safe on disk. Ctrl-C and SIGTERM end the run cleanly.
    """
    check_room(1, study.threads)
    folder, stop = Path(folder), stop or Stop()
    with in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with in_words(folder):
            stack.enter_context(locked(folder))
        stack.enter_context(stop.signals())
        store = Store(folder)
        stack.callback(store.close)
        _plan(study, store)
        reused, _ = store.counts()
        run = Loop(study, store, stop, report)
        try:
            runner = (executor or Serial)(stop)
            if not isinstance(runner, Executor):
                raise InputError(
                    f"executor must make an executor such as studies.Serial, it made {shown(runner)}."
                )
            stack.callback(runner.close)
            store.start_session(machine.session(runner.about))
            describe(folder, study, store.sessions())
            run.go(runner)
        except WorkersLost:
            if not stop.asked:  # those that stop anyway may say so in any way
                raise
    return Finished(folder, run.done, run.total, run.failed, stop.asked, reused)


def _plan(study: Study, store: Store) -> None:
    """The first round of every point, and further ones as far as what is known decides them."""
    rounds = ((what, tasks(study, what, 0, study.replicates)) for what in points(study))
    store.plan(study.model_dump(mode="json"), rounds, count_points(study))
    if study.precision is not None:
        for point in range(count_points(study)):
            while extend(study, store, point):
                pass
