"""Runs in one process: what is done again, what is given up, how they stop, and that order does not matter."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from attnlimit.errors import InputError
from attnlimit.studies import Stop, WorkersLost, open_run, run_study, study_from
from attnlimit.studies.executors import Serial
from attnlimit.studies.work import Ended


def probes(count: int = 5, **fields):
    return study_from({"name": "p", "kind": "probe", "grid": {"value": list(range(count))}, **fields})


def contents(folder: str | Path) -> dict[bytes, bytes]:
    with open_run(folder) as run:
        return dict(run.rows("SELECT id, result FROM results"))


class Shuffled(Serial):
    """Runs what it holds in a random order."""

    slots = 7

    def collect(self, timeout: float):
        random.Random(0).shuffle(self._tasks)
        return super().collect(timeout)


def test_the_order_does_not_matter(tmp_path):
    study = probes(40, replicates=3, chunk=2)
    run_study(study, tmp_path / "a")
    run_study(study, tmp_path / "b", Shuffled)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    with open_run(tmp_path / "b") as run:
        order = [
            first
            for (first,) in run.rows(
                "SELECT tasks.place FROM results JOIN tasks USING (id) ORDER BY finished"
            )
        ]
    assert order != sorted(order)
    assert len(contents(tmp_path / "a")) == 80


def test_a_changed_study_reuses_the_tasks_that_did_not_change(tmp_path):
    assert run_study(probes(5), tmp_path).reused == 0
    before = contents(tmp_path)
    wider = run_study(probes(8), tmp_path)
    assert (wider.reused, wider.done, wider.total) == (5, 8, 8)
    other = run_study(probes(8, seed=1), tmp_path)
    assert (other.reused, other.done, other.total) == (0, 8, 8)
    back = run_study(probes(5), tmp_path)  # nothing that was found is ever thrown away
    assert (back.reused, back.done, back.total) == (5, 5, 5)
    assert before.items() < contents(tmp_path).items()
    with open_run(tmp_path) as run:
        assert len(list(run.results())) == 5  # tables hold the present study only


def test_threads_that_a_machine_cannot_hold_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match=r"threads must be at most \d+ here, got 100000: this machine has"):
        run_study(probes(threads=100_000), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_makes_no_executor_is_refused_and_the_run_goes_on_after_it(tmp_path):
    with pytest.raises(
        InputError, match=r"executor must make an executor such as studies\.Serial, it made None"
    ):
        run_study(probes(), tmp_path, lambda stop: None)
    assert run_study(probes(), tmp_path).done == 5


def test_a_finished_run_does_nothing(tmp_path):
    class Never:
        slots, about = 1, "never"

        def __init__(self, stop):
            pass

        def submit(self, place, task):
            raise AssertionError("nothing is left to do")

        def collect(self, timeout):
            raise AssertionError("nothing is under way")

        def close(self):
            pass

    run_study(probes(), tmp_path)
    assert run_study(probes(), tmp_path, Never).done == 5


def test_a_task_that_raises_is_recorded_retried_and_given_up(tmp_path):
    study = probes(4, cases=[{"fail": "no"}, {"fail": "raise", "seconds": 0.001}], retries=2)
    seen = []
    finished = run_study(study, tmp_path, report=seen.append)
    assert (finished.done, finished.total, finished.failed) == (4, 8, 4)
    assert seen[-1] == (4, 8, 4)
    with open_run(tmp_path) as run:
        state, failures = run.state, run.failures()
    assert (state.state, state.failed) == ("failed", 4)
    assert len(failures) == 4 * 3  # each at first and twice again
    assert {one.how for one in failures} == {"raised"}
    assert "RuntimeError: a probe that fails, value 3" in failures[-1].message
    assert "Traceback" in failures[-1].message
    assert run_study(study, tmp_path).failed == 4  # resuming tries them again
    with open_run(tmp_path) as run:
        assert len(run.failures()) == 8 * 3


def test_tasks_that_were_never_run_are_simply_run_again(tmp_path):
    class Forgetful(Serial):
        lost = 3

        def collect(self, timeout):
            if self.lost:
                self.lost -= 1
                return [Ended(self._tasks.popleft()[0], "lost", b"")]
            return super().collect(timeout)

    finished = run_study(probes(), tmp_path, Forgetful)
    assert (finished.done, finished.failed) == (5, 0)
    with open_run(tmp_path) as run:
        assert run.failures() == []


def test_a_task_that_kills_three_workers_is_set_aside(tmp_path):
    class Deadly(Serial):
        def collect(self, timeout):
            place, task = self._tasks.popleft()
            if b'"value":2.0' in task:
                return [Ended(place, "died", b"the worker was killed by SIGKILL")]
            self._tasks.appendleft((place, task))
            return super().collect(timeout)

    finished = run_study(probes(5, retries=0), tmp_path, Deadly)
    assert (finished.done, finished.failed) == (4, 1)
    with open_run(tmp_path) as run:
        assert [(one.how, one.message) for one in run.failures()] == [
            ("died", "the worker was killed by SIGKILL")
        ] * 3


def test_workers_that_are_lost_end_the_run_with_all_that_was_done(tmp_path):
    class Gone(Serial):
        left = 3

        def collect(self, timeout):
            self.left -= 1
            if self.left < 0:
                raise WorkersLost("The scheduler does not answer.")
            return super().collect(timeout)

    with pytest.raises(WorkersLost, match="does not answer"):
        run_study(probes(), tmp_path, Gone)
    assert len(contents(tmp_path)) == 3
    assert run_study(probes(), tmp_path).reused == 3


# --- precision ----------------------------------------------------------------------------------------


def adaptive(half_width: float, most: int = 60, of: str = "error"):
    return study_from(
        {
            "name": "a",
            "kind": "convergence",
            "what": {
                "law": {"name": "gaussian", "dim": 1},
                "head": {"name": "identity", "horizon": 0.5},
                "n": [20, 40, 80],
                "queries": 4,
            },
            "grid": {"head.horizon": [0.3, 1.5]},
            "replicates": 6,
            "chunk": 3,
            "precision": {"of": of, "half_width": half_width, "max_replicates": most},
        }
    )


def replicates(folder: Path) -> list[int]:
    with open_run(folder) as run:
        return [n for (n,) in run.rows("SELECT sum(count) FROM tasks GROUP BY point ORDER BY point")]


@pytest.mark.parametrize(("of", "wide"), [("error", 0.25), ("slope", 0.15)])
def test_replicates_are_added_until_the_interval_is_narrow(tmp_path, of, wide):
    from attnlimit.studies.kind import kind

    study = adaptive(wide, 300, of)
    run_study(study, tmp_path)
    found = kind("convergence")
    with open_run(tmp_path) as run:
        for point, what in run.points():
            results = [result for *_, result in run.results(point)]
            count = sum(one.replicates for one in results)
            fields = found.model_validate(what)
            assert found.half_width(fields, found.result.joined(results), of, 0.95) <= wide
            assert 6 < count < 300
            half = found.result.joined(results[: len(results) // 2])
            assert found.half_width(fields, half, of, 0.95) > wide  # not many too many


def test_the_cap_holds(tmp_path):
    finished = run_study(adaptive(1e-6, 20), tmp_path)
    assert replicates(tmp_path) == [20, 20]
    assert finished.done == finished.total == 2 * 7


def test_rounds_come_out_the_same_however_the_run_was_cut(tmp_path):
    study = adaptive(0.25)
    run_study(study, tmp_path / "whole")
    run_study(study, tmp_path / "shuffled", Shuffled)

    class Short(Serial):
        """Stops the run after three tasks."""

        def __init__(self, stop):
            super().__init__(stop)
            self.left = 3

        def collect(self, timeout):
            self.left -= 1
            if self.left == 0:
                self._stop.ask()
            return super().collect(timeout)

    cuts = 0
    while run_study(study, tmp_path / "cut", Short).interrupted:
        cuts += 1
    assert cuts > 3
    assert contents(tmp_path / "whole") == contents(tmp_path / "shuffled") == contents(tmp_path / "cut")
    assert replicates(tmp_path / "whole") == replicates(tmp_path / "cut")


# --- stopping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_breaks_off_the_running_task_and_keeps_the_rest(tmp_path, number):
    study = probes(4, cases=[{"seconds": 0}, {"seconds": 60}])
    before = signal.getsignal(number)

    def soon(now) -> None:
        if now.done == 1:
            threading.Timer(1.0, os.kill, (os.getpid(), number)).start()

    start = time.monotonic()
    finished = run_study(study, tmp_path, report=soon)
    assert finished.interrupted
    assert (finished.done, finished.failed) == (4, 0)
    assert time.monotonic() - start < 30  # and not the four minutes of its tasks
    assert signal.getsignal(number) is before
    assert len(contents(tmp_path)) == 4


def test_a_stop_from_another_thread(tmp_path):
    stop, results = Stop(), []
    thread = threading.Thread(
        target=lambda: results.append(run_study(probes(500, what={"seconds": 0.01}), tmp_path, stop=stop))
    )
    thread.start()
    while not (tmp_path / "machine.json").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    stop.ask()
    thread.join()
    assert results[0].interrupted
    assert 0 < results[0].done < 500
    assert len(contents(tmp_path)) == results[0].done


def test_a_task_in_foreign_code_cannot_hold_the_process(tmp_path, forked, monkeypatch):
    """A call that never returns to Python: the process ends by itself, and what was committed is there."""
    monkeypatch.setattr("attnlimit.studies.stop.GRACE", 0.2)

    class Deaf(Serial):
        def collect(self, timeout):
            if b'"seconds":60.0' in self._tasks[0][1]:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # this thread never hears of it
                time.sleep(60)
            return super().collect(timeout)

    def run(say) -> None:
        run_study(
            probes(3, cases=[{"seconds": 0}, {"seconds": 60}]),
            tmp_path,
            Deaf,
            report=lambda now: say(now.done),
        )

    process, heard = forked(run)
    while heard.recv() < 1:
        pass
    time.sleep(1.0)  # the next two take no time, the third never ends
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    assert process.exitcode == 130
    assert len(contents(tmp_path)) == 3
