"""Worker processes: the same bytes as in one process, and deaths that cost one task."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from attnlimit.errors import InputError
from attnlimit.studies import Processes, Stop, WorkersLost, estimate, open_run, run_study, study_from
from attnlimit.studies.executors import processes
from attnlimit.studies.work import Ended

LAW = {"name": "gaussian", "dim": 3, "cov": 0.5}
REAL = {
    "name": "real",
    "kind": "convergence",
    "what": {
        "law": LAW,
        "head": {"name": "random", "horizon": 1.0},
        "n": [100, 400, 1600],
        "self_attention": True,
        "statistic": "covariance",
    },
    "grid": {"head.horizon": [0.5, 1.5], "dtype": ["float64", "float32"]},
    "replicates": 6,
    "chunk": 3,
}


def contents(folder: str | Path) -> dict[bytes, bytes]:
    with open_run(folder) as run:
        return dict(run.rows("SELECT id, result FROM results"))


@pytest.fixture
def quiet_sleep(monkeypatch):
    """In this process probes do not wait, which their results cannot show."""
    monkeypatch.setattr("attnlimit.studies.kinds.probe.time.sleep", lambda seconds: None)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_workers_give_the_same_bytes_and_survive_kills(tmp_path, quiet_sleep):
    """One run: real tasks, then probes; workers are killed on the way, and one probe kills those that run it."""
    made: list[Processes] = []

    def pool(stop: Stop) -> Processes:
        made.append(Processes(2))
        return made[0]

    study = study_from(REAL)
    harmless = {
        "name": "p",
        "kind": "probe",
        "what": {"seconds": 0.1},
        "cases": [{"value": float(k)} for k in range(40)],
    }
    deadly = harmless | {"cases": [*harmless["cases"], {"fail": "die"}]}
    run_study(study, tmp_path / "serial")
    run_study(study, tmp_path / "two", pool)
    assert contents(tmp_path / "two") == contents(tmp_path / "serial")
    assert len(contents(tmp_path / "two")) == 8

    killed: list[int] = []

    def kill(now) -> None:
        if now.done >= 6 and not killed:
            victim = made[0].pids[0]
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
        assert not any(one.status == "LISTEN" for one in psutil.Process().net_connections("inet"))

    made.clear()
    finished = run_study(study_from(deadly), tmp_path / "killed", pool, report=kill)
    assert len(killed) == 1
    assert (finished.done, finished.total, finished.failed) == (40, 41, 1)
    with open_run(tmp_path / "killed") as run:
        failures = run.failures()
        poison = [one for one in failures if one.point == 40]
    assert [one.how for one in poison] == ["died"] * 3  # set aside after three workers
    assert "the worker was killed by SIGKILL (the system does so when memory runs out" in poison[0].message
    assert len(failures) - len(poison) <= len(killed)  # the other death cost one task, which was run again
    run_study(study_from(harmless), tmp_path / "probes")
    assert contents(tmp_path / "killed") == contents(tmp_path / "probes")


def test_workers_stop_at_once_and_are_gone(tmp_path):
    stop, pids = Stop(), []

    def pool(_: Stop) -> Processes:
        made = Processes(2)
        pids.extend(made.pids)
        threading.Timer(0.5, stop.ask).start()
        return made

    study = study_from(
        {"name": "p", "kind": "probe", "what": {"seconds": 60}, "cases": [{"value": 1.0}, {"value": 2.0}]}
    )
    start = time.monotonic()
    finished = run_study(study, tmp_path, pool, stop=stop)
    assert finished.interrupted
    assert time.monotonic() - start < 30
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_worker_that_hangs_is_ended_and_its_task_set_aside(tmp_path):
    """The others are done, the message says why, and the run goes on when the task no longer hangs."""
    cases = [{"value": 1.0}, {"value": 2.0, "seconds": 3600.0}, {"value": 3.0}]
    study = study_from({"name": "p", "kind": "probe", "cases": cases, "task_seconds": 0.3})
    finished = run_study(study, tmp_path, lambda stop: Processes(1, task_seconds=study.task_seconds))
    assert (finished.done, finished.total, finished.failed) == (2, 3, 1)
    with open_run(tmp_path) as run:
        told = run.failures()
    assert [one.how for one in told] == ["died"] * 3
    assert "it did not end within 0.3 s (task_seconds), so its worker was ended" in told[0].message
    before = contents(tmp_path)
    cases[1] = {"value": 2.0}
    assert run_study(study_from({"name": "p", "kind": "probe", "cases": cases}), tmp_path).reused == 2
    assert before.items() < contents(tmp_path).items()


def test_workers_that_cannot_start_are_told_of(tmp_path, monkeypatch):
    real = processes.subprocess.Popen
    monkeypatch.setattr(
        processes.subprocess,
        "Popen",
        lambda command, **rest: real([command[0], "-c", "raise SystemExit(3)"], **rest),
    )
    study = study_from({"name": "p", "kind": "probe"})
    with pytest.raises(
        WorkersLost, match=r"3 worker processes in a row failed \(the last ended with exit code 3\)"
    ):
        run_study(study, tmp_path, lambda stop: Processes(1))
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        Processes(0)


@pytest.mark.parametrize("size", [{"workers": 10**6}, {"workers": 2, "threads": 10**6}])
def test_more_than_a_machine_can_hold_is_refused(size):
    expected = rf"{list(size)[-1]} must be at most \d+ here, got 1000000: this machine has \d+ cores"
    with pytest.raises(InputError, match=expected):
        Processes(**size)


def test_an_orphaned_worker_ends_by_itself():
    pool = Processes(1)
    pool.submit(0, study_task(60))
    while not pool._workers[0].ready:
        pool.collect(0.2)
    worker = pool._workers[0]
    worker.connection.close()  # as when the coordinator is killed
    assert worker.process.wait(20) == 0  # in the middle of its task
    pool._workers = []


def test_a_worker_that_is_orphaned_as_it_starts_says_nothing(capfd):
    pool = Processes(2)
    for worker in pool._workers:
        worker.connection.close()
    assert [worker.process.wait(60) for worker in pool._workers] == [0, 0]
    assert capfd.readouterr() == ("", "")
    pool._workers = []


def study_task(seconds: float) -> bytes:
    from attnlimit.studies.spec import Task

    return Task("probe", 1, {"value": 0.0, "seconds": seconds, "fail": "no"}, 0, 1, 0).to_bytes()


def test_threads_of_workers_do_not_exceed_what_was_asked(monkeypatch):
    seen: list[dict[str, str]] = []
    real = processes.subprocess.Popen

    def popen(command, **rest):
        seen.append(rest["env"])
        return real([command[0], "-c", ""], **rest)

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    pool = Processes(2, threads=3)
    pool.close()
    assert [{env[name] for name in processes.THREADS} for env in seen] == [{"3"}, {"3"}]
    assert pool.about == "2 processes of 3 threads"


@pytest.fixture
def patient(monkeypatch) -> None:
    """A busy machine may take its time."""
    monkeypatch.setattr(sys.modules["attnlimit.studies.estimate"], "LIMIT", 600.0)


def test_estimates_come_from_a_few_small_tasks(patient):
    study = study_from(REAL | {"precision": {"of": "slope", "half_width": 0.1, "max_replicates": 30}})
    found = estimate(study, 2)
    assert (found.points, found.tasks, found.most_tasks, found.done) == (4, 8, 40, 0)
    assert 0 < found.seconds < found.most_seconds
    assert found.seconds <= found.likely_seconds <= found.most_seconds == pytest.approx(5 * found.seconds)
    assert found.memory_mb > 50
    assert found.calibration == "3 tasks of 3 replicates, this machine"
    json.dumps(found.to_dict())
    plain = estimate(study.model_copy(update={"precision": None}), 2)
    assert plain.seconds == plain.likely_seconds == plain.most_seconds
    assert plain.calibration == "3 tasks of 2 replicates, this machine"


@pytest.mark.parametrize(("half_width", "where"), [(1e-4, "most_seconds"), (10.0, "seconds")])
def test_estimates_follow_the_precision_that_is_asked_for(half_width, where, patient):
    asked = {"of": "slope", "half_width": half_width, "max_replicates": 30}
    found = estimate(study_from(REAL | {"chunk": 6, "precision": asked}), 1)
    assert found.seconds < found.most_seconds
    assert found.likely_seconds == getattr(found, where)


def test_an_estimate_tells_of_tasks_that_fail():
    from attnlimit.studies.estimate import _refuse_failed

    with pytest.raises(
        InputError, match="A task that was tried failed, so the study would too: ValueError: x"
    ):
        _refuse_failed({0: Ended(0, "raised", b"Traceback\n  ...\nValueError: x\n")})
