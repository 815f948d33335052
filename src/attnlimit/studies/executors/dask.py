"""Workers of a Dask cluster: on this machine, at a scheduler's address, or started as jobs of a batch system (dask-jobqueue)."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from attnlimit.errors import InputError, WorkersLost, needs
from attnlimit.files.yamlfile import read_yaml, validated
from attnlimit.inputs import shown
from attnlimit.studies.executors.processes import THREADS, check_room
from attnlimit.studies.fields import Fields
from attnlimit.studies.stop import SIGNALS
from attnlimit.studies.work import Ended, work


class Adapt(Fields):
    """Between so many jobs, as the work asks."""

    minimum: NonNegativeInt = 0
    maximum: PositiveInt


class Jobs(Fields):
    """`options` are those of dask-jobqueue's class: queue, account, cores, memory, walltime, interface, …"""

    system: Literal["slurm", "pbs", "sge", "lsf", "oar", "htcondor"]
    jobs: PositiveInt | Adapt
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _enough(self) -> Jobs:
        missing = [name for name in ("cores", "memory") if name not in self.options]
        if missing:
            raise ValueError(f"options must say {' and '.join(missing)} of a job")
        return self


def start(path: str) -> Any:
    """The cluster that a YAML file describes, its jobs submitted. Its scheduler listens where `options` say
    (interface, scheduler_options), since other machines must reach it."""
    data, lines = read_yaml(path)
    jobs = validated(Jobs, data, lines, path)
    with needs("Jobs of a batch system need dask-jobqueue", "cluster"):
        import dask_jobqueue
    try:
        name = {"htcondor": "HTCondor"}.get(jobs.system, jobs.system.upper())
        cluster = getattr(dask_jobqueue, f"{name}Cluster")(**jobs.options)
        if isinstance(jobs.jobs, Adapt):
            cluster.adapt(minimum_jobs=jobs.jobs.minimum, maximum_jobs=jobs.jobs.maximum)
        else:
            cluster.scale(jobs=jobs.jobs)
    except (TypeError, ValueError, RuntimeError, OSError) as problem:
        raise InputError(f"{path}: {jobs.system} jobs cannot be started: {problem}") from problem
    return cluster


CONNECT_SECONDS, CLOSE_SECONDS, LOOK_SECONDS = 20, 1.5, 1.0
LOOPBACK = "127.0.0.1"


class Dask:
    """Tasks on the workers of a client; one task for each of their threads is under way."""

    def __init__(
        self,
        client: Any,
        cluster: Any = None,
        resources: Mapping[str, float] | None = None,
        task_seconds: float | None = None,
    ) -> None:
        if not hasattr(client, "scheduler_info"):
            raise InputError(
                f"client must be a dask.distributed.Client, got {shown(client)}: connect(where) makes one."
            )
        self._client, self._cluster, self._task_seconds = client, cluster, task_seconds
        self._resources = dict(resources or {})
        self._futures: dict[Any, int] = {}
        self._threads, self._looked = 1, 0.0
        self._refuse_lacking()

    def _refuse_lacking(self) -> None:
        """Tasks that ask for what no worker offers would wait for ever; workers that are still to come are trusted."""
        there = self._client.scheduler_info(n_workers=-1)["workers"].values()
        for name, amount in self._resources.items():
            if there and not any(worker["resources"].get(name, 0) >= amount for worker in there):
                self.close()
                raise InputError(
                    f"The study asks for workers with {name} = {amount:g}, and none of the {len(there)} workers offers that: "
                    f"start some with `dask worker ADDRESS --resources '{name}={amount:g}'`."
                )

    @property
    def about(self) -> str:
        return f"Dask at {self._client.scheduler.address}"

    @property
    def dashboard(self) -> str:
        return str(self._client.dashboard_link)

    @property
    def slots(self) -> int:
        """As many as the workers have threads now: what is queued on a worker would die with it."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            with suppress(OSError, TimeoutError):
                self._threads = sum(self._client.nthreads().values())
        return max(1, self._threads)

    def submit(self, place: int, task: bytes) -> None:
        how = {"pure": False, "retries": 0, "resources": self._resources or None}
        key = f"attnlimit-{place}-{time.monotonic_ns()}"
        self._futures[self._client.submit(_watched, place, task, self._task_seconds, key=key, **how)] = place

    def collect(self, timeout: float) -> list[Ended]:
        if not self._futures:
            time.sleep(timeout)
            return []
        with suppress(TimeoutError, CancelledError):  # all are cancelled where the scheduler is lost
            _distributed().wait(list(self._futures), timeout=timeout, return_when="FIRST_COMPLETED")
        if self._client.status != "running":
            raise WorkersLost(
                f"The Dask scheduler {self._client.scheduler.address if self._client.scheduler else ''} does not answer "
                f"(client {self._client.status}): what was committed is kept, resume the run when it is back."
            )
        return [one for future in list(self._futures) if future.done() for one in self._outcome(future)]

    def _outcome(self, future: Any) -> list[Ended]:
        """The outcome of a future that is done; none if its result has meanwhile died with a worker."""
        from distributed import KilledWorker

        place = self._futures[future]
        try:
            found = future.result(timeout=CLOSE_SECONDS)
        except TimeoutError:
            return []
        except KilledWorker as death:
            reason = f"the worker {death.last_worker.address} died".encode()
            found = Ended(place, "died", reason, deaths=death.allowed_failures + 1)
        except CancelledError:
            found = Ended(place, "lost", b"")
        except Exception as problem:
            found = Ended(place, "raised", f"{type(problem).__name__}: {problem}".encode())
        del self._futures[future]
        return [found]

    def close(self) -> None:
        """Workers of our own cluster are ended; those of another's drop our tasks."""
        self._futures.clear()
        with suppress(Exception):  # a scheduler that is gone cannot be told
            self._client.close(timeout=CLOSE_SECONDS)
        if self._cluster is not None:
            _kill(self._cluster)
            with suppress(Exception):
                self._cluster.close(timeout=CLOSE_SECONDS)


def _kill(cluster: Any) -> None:
    """End the processes of a local cluster at once: Dask would wait for the tasks that they run."""
    for nanny in cluster.workers.values():
        pid = getattr(getattr(nanny, "process", None), "pid", None)
        if pid is not None:
            nanny.auto_restart = False
            with suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _watched(place: int, task: bytes, seconds: float | None) -> Ended:
    """On the worker, which ends if the task takes longer; where it was then is in the worker's log."""
    if seconds is None:
        return work(place, task)
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        return work(place, task)
    finally:
        faulthandler.cancel_dump_traceback_later()


def connect(
    where: str,
    workers: int,
    threads: int = 1,
    resources: Mapping[str, float] | None = None,
    task_seconds: float | None = None,
) -> Dask:
    """`where` is "local", a scheduler's address (tcp://…, tls://…), or a YAML file that describes a batch system."""
    distributed = _distributed()
    if "://" in where:
        return Dask(_client(distributed, where), None, resources, task_seconds)
    if where != "local" and Path(where).suffix not in (".yaml", ".yml"):
        raise InputError(
            f"--dask must be local, an address such as tcp://scheduler:8786, or a .yaml file; got {where!r}."
        )
    cluster = _local(distributed, workers, threads) if where == "local" else start(where)
    return Dask(distributed.Client(cluster), cluster, resources, task_seconds)


def _local(distributed: Any, workers: int, threads: int) -> Any:
    """Loopback only, dashboard included. A worker runs one task at a time, and a death is ours to count."""
    import dask

    check_room(workers, threads)
    gpus = torch.cuda.device_count()
    settings = {
        "distributed.scheduler.allowed-failures": 0,
        "distributed.nanny.pre-spawn-environ": dict.fromkeys(THREADS, threads),
    }
    with dask.config.set(settings), _shielded():
        return distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host=LOOPBACK,
            dashboard_address=f"{LOOPBACK}:0",
            worker_dashboard_address=f"{LOOPBACK}:0",
            resources={"GPU": gpus / workers} if gpus else {},
            silence_logs="CRITICAL",
        )


@contextmanager
def _shielded() -> Iterator[None]:
    """Processes started inside, or by threads that were, hear neither Ctrl-C nor SIGTERM: the coordinator alone decides."""
    before = None
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        resource_tracker.ensure_running()  # whose start would lift the block again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    except (RuntimeError, TimeoutError, OSError) as problem:
        raise WorkersLost(f"Dask's workers do not start: {problem}") from problem
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _client(distributed: Any, address: str) -> Any:
    try:
        return distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as problem:
        raise InputError(
            f"No Dask scheduler answers at {address} ({problem}): start one with `dask scheduler`, or check the address."
        ) from problem


def _distributed() -> Any:
    with needs("Running on Dask needs distributed", "cluster"):
        import distributed
    return distributed
