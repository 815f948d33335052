"""Dask clusters: a study whose workers and coordinator are killed, and one on a batch system that is played."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from attnlimit.errors import InputError
from attnlimit.studies import Dask, WorkersLost, connect, open_run, run_study, study_from
from attnlimit.studies.coordinator import Progress
from attnlimit.studies.executors.dask import start

TASKS, KILLS = 200, 6
STUDY = {
    "name": "fault",
    "kind": "probe",
    "what": {"seconds": 0.05},
    "grid": {"value": list(range(TASKS))},
    "replicates": 2,
}
# Dask's workers are forked here from a server that has imported torch once, which takes most of a worker's start.
FORKED = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver"}
PRELOAD = """
from distributed.utils import get_mp_context
get_mp_context().set_forkserver_preload(["distributed", "attnlimit.studies.work"])
"""
COORDINATOR = """
import sys
from attnlimit.studies import connect, load_study, run_study
print(run_study(load_study(sys.argv[1]), sys.argv[2], lambda stop: connect(sys.argv[3], 2)))
"""


def contents(folder: Path) -> dict[bytes, bytes]:
    with open_run(folder) as run:
        return dict(run.rows("SELECT id, result FROM results"))


def coordinator(study: Path, folder: Path, where: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELOAD + COORDINATOR, str(study), str(folder), where]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | FORKED
    )


def written(folder: Path) -> Path:
    import yaml

    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    return path


def done(folder: Path) -> int:
    try:
        return len(contents(folder))
    except InputError:
        return 0  # it has not begun


def a_worker(process: subprocess.Popen[str], choice: random.Random) -> psutil.Process:
    """One of those that live now; those that are dead already, or not born yet, are waited for."""
    while True:
        with suppress(psutil.Error):
            children = psutil.Process(process.pid).children()
            servers = [child for child in children if "forkserver" in " ".join(child.cmdline())]
            living = [one for server in servers for one in server.children() if one.status() != "zombie"]
            if living:
                return choice.choice(living)
        time.sleep(0.05)


def wait_for(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    while done(folder) < count:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def listening(process: subprocess.Popen[str]) -> set[str]:
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    return {
        connection.laddr.ip
        for one in everyone
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_workers_and_the_coordinator_are_killed_and_nothing_is_lost(tmp_path, monkeypatch):
    study, folder, choice = written(tmp_path), tmp_path / "run", random.Random(3)
    process = coordinator(study, folder, "local")
    killed, before = 0, {}
    try:
        for kill in range(KILLS):
            wait_for(folder, done(folder) + choice.randint(4, 12), process)
            if kill == 0:
                assert listening(process) == {
                    "127.0.0.1"
                }  # scheduler, workers and dashboards: this machine only
            a_worker(process, choice).kill()
            killed += 1
            if kill == KILLS // 2:
                process.kill()
                process.communicate()
                before = contents(folder)
                process = coordinator(study, folder, "local")
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, output
    assert killed >= 5
    assert 0 < len(before) < TASKS
    found = contents(folder)
    assert len(found) == TASKS
    assert before.items() < found.items()
    assert f"done={TASKS}, total={TASKS}, failed=0" in output
    assert f"reused={len(before)}" in output
    with open_run(folder) as run:
        assert {one.how for one in run.failures()} <= {"died"}
        assert run.rows("PRAGMA integrity_check") == [("ok",)]
    monkeypatch.setattr("attnlimit.studies.kinds.probe.time.sleep", lambda seconds: None)
    run_study(study_from(STUDY), tmp_path / "serial")
    assert contents(tmp_path / "serial") == found


SBATCH = """#!/bin/sh
cp "$1" job.sh  # as the true one does: Dask removes the script when sbatch returns
nohup sh job.sh > job.log 2>&1 &
echo $! > job.pid
echo "Submitted batch job $!"
"""


def end_job(file: Path) -> None:
    with suppress(psutil.Error, FileNotFoundError):
        job = psutil.Process(int(file.read_text()))
        for one in [*job.children(recursive=True), job]:
            one.kill()


def test_a_study_on_slurm(tmp_path):
    """sbatch and scancel are played by scripts that start and end the job on this machine."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", '#!/bin/sh\nkill "$1"\n')):
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    config = tmp_path / "slurm.yaml"
    config.write_text(
        "system: slurm\njobs: 1\noptions:\n"
        f"  cores: 1\n  memory: 2GB\n  processes: 1\n  interface: lo\n  python: {sys.executable}\n"
        "  walltime: '00:05:00'\n  worker_extra_args: ['--resources', 'GPU=1']\n"
    )
    study = tmp_path / "study.yaml"
    study.write_text(
        "name: s\nkind: probe\nresources: {GPU: 1}\ngrid:\n  value: [1, 2, 3, 4]\n", encoding="utf-8"
    )
    script = COORDINATOR.replace("2)))", "2, resources={'GPU': 1})))")
    environment = os.environ | {"PATH": f"{binaries}:{os.environ['PATH']}"}
    try:
        finished = subprocess.run(
            [sys.executable, "-c", script, str(study), str(tmp_path / "run"), str(config)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=120,
            check=False,
        )
        assert "done=4, total=4, failed=0" in finished.stdout, finished.stderr
    finally:
        end_job(tmp_path / "job.pid")
    run_study(
        study_from({"name": "s", "kind": "probe", "grid": {"value": [1, 2, 3, 4]}}), tmp_path / "serial"
    )
    assert contents(tmp_path / "run") == contents(tmp_path / "serial")


def test_where_dask_is_must_be_said_right(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"--dask must be local, an address such as tcp://scheduler:8786"):
        connect("cluster", 1)
    monkeypatch.setattr("attnlimit.studies.executors.dask.CONNECT_SECONDS", 0.2)
    with pytest.raises(InputError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        connect("tcp://127.0.0.1:9", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("system: condor\njobs: 1\n", r"jobs.yaml: line 1, system: .*'slurm', 'pbs'"),
        ("system: slurm\njobs: 1\noptions: {cores: 2}\n", r"options must say memory of a job"),
        ("system: slurm\njobs: 0\noptions: {cores: 1, memory: 1GB}\n", r"line 2, jobs"),
        (
            "system: slurm\njobs: {maximum: 3, most: 4}\noptions: {cores: 1, memory: 1GB}\n",
            r"there is no such field",
        ),
        (
            "system: slurm\njobs: 1\noptions: {cores: 1, memory: 1GB, interface: nothing0}\n",
            r"slurm jobs cannot be started",
        ),
    ],
)
def test_bad_descriptions_of_a_batch_system(tmp_path, text, message):
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        start(str(path))


class Client:
    """What the executor asks of Dask's client."""

    status = "running"

    class scheduler:
        address = "tcp://127.0.0.1:8786"

    def __init__(self, *offers: dict[str, float]) -> None:
        self.workers = {f"tcp://127.0.0.1:{k}": {"resources": offer} for k, offer in enumerate(offers)}
        self.closed = False

    def scheduler_info(self, n_workers: int):
        return {"workers": self.workers}

    def close(self, timeout: float) -> None:
        self.closed = True


def test_a_label_that_no_worker_offers_is_refused_at_once():
    client = Client({}, {"GPU": 0.5})
    with pytest.raises(
        InputError, match="asks for workers with GPU = 1, and none of the 2 workers offers that"
    ):
        Dask(client, resources={"GPU": 1.0})
    assert client.closed
    Dask(Client({}, {"GPU": 2.0}), resources={"GPU": 1.0})
    Dask(Client(), resources={"GPU": 1.0})  # workers of a batch system are still to come


def test_tasks_on_cuda_ask_for_a_gpu():
    from attnlimit.studies.spec import Study, labels

    exact = {"name": "e", "kind": "exact", "what": {"device": "cuda"}}
    assert labels(Study(**exact)) == {"GPU": 1.0}
    assert labels(Study(**exact, resources={"GPU": 2.0, "A100": 1.0})) == {"GPU": 2.0, "A100": 1.0}
    assert labels(Study(name="e", kind="exact", grid={"device": ["cpu", "cuda"]})) == {"GPU": 1.0}
    assert labels(Study(name="i", kind="icl", what={"optimizer": {"device": "cuda"}})) == {"GPU": 1.0}
    assert labels(Study(name="i", kind="icl", cases=[{"optimizer.device": "cuda"}])) == {"GPU": 1.0}
    assert labels(Study(name="e", kind="exact")) == {}


def test_a_scheduler_that_is_gone_ends_the_run_by_name(monkeypatch):
    class Future:
        def done(self) -> bool:
            return False

    executor = Dask(Client())
    executor._futures[Future()] = 0
    executor._client.status = "closed"
    monkeypatch.setattr("distributed.wait", lambda *_, **__: None)
    with pytest.raises(
        WorkersLost, match=r"scheduler tcp://127\.0\.0\.1:8786 does not answer \(client closed\)"
    ):
        executor.collect(0.0)


def test_a_scheduler_that_is_killed_ends_the_run_by_name_and_it_goes_on(tmp_path):
    file, folder, processes = tmp_path / "scheduler.json", tmp_path / "run", []
    for part in (
        ["scheduler", "--host", "127.0.0.1", "--port", "0"],
        ["worker", "--no-nanny", "--nthreads", "1"],
    ):
        words = [sys.executable, "-m", "dask", *part, "--scheduler-file", str(file), "--no-dashboard"]
        processes.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
    study = study_from(STUDY | {"replicates": 1, "grid": {"value": list(range(40))}})

    def safe(progress: Progress) -> None:
        if progress.done > 3:
            processes[0].kill()

    try:
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        with pytest.raises(WorkersLost, match=r"does not answer .*what was committed is kept"):
            run_study(study, folder, lambda stop: connect(address, 1), report=safe)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    kept = done(folder)
    assert 3 < kept < 40
    again = run_study(study, folder)
    assert (again.done, again.reused) == (40, kept)


def test_more_workers_than_a_machine_can_hold_are_refused():
    with pytest.raises(InputError, match=r"workers must be at most \d+ here, got 1000000"):
        connect("local", 10**6)
