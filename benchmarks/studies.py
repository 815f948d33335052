"""Studies: what a task costs beside its own work, in time, store and memory, and what a second process gives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from attnlimit.studies import Finished, Processes, Study, load_study, open_run, run_study, study_from
from attnlimit.studies.store import NAME
from benchmarks._figures import figure
from benchmarks._memory import HOW, _resident, peak_growth

GAUSSIAN = Path(__file__).parent.parent / "examples" / "gaussian.yaml"


def run(quick: bool) -> dict[str, object]:
    count = 1000 if quick else 10_000
    serial, size = _trivial(count, None)
    two, _ = _trivial(count, 2)
    few, _ = peak_growth("studies", "trivial_tasks", count)
    many, before = peak_growth("studies", "trivial_tasks", 10 * count)
    ratio, rounds = _second_process(quick)
    targets = not quick
    return {
        "setting": f"{count:,} trivial tasks ({10 * count:,} for memory); Gaussian sweep of d = 50, 24 points",
        "figures": [
            figure("trivial tasks, serial", serial, "tasks/s", **_at_least(500, targets)),
            figure(
                "trivial tasks, two processes",
                two,
                "tasks/s",
                **_at_least(150, targets),
                how="with the start of the processes",
            ),
            figure("store", size, "bytes a task", at_most=2000),
            figure(
                f"resident memory with {10 * count:,} tasks",
                float(str(before)) + many,
                "MB",
                at_most=300,
                how="peak of a serial run, torch and all other imports included",
            ),
            figure(
                f"of that, for the {10 * count:,} tasks",
                many,
                "MB",
                how=HOW,
                per_task_bytes=(many - few) * 1e6 / (9 * count),
            ),
            figure(
                "throughput of two processes on the Gaussian sweep",
                ratio,
                "× one process",
                **_at_least(1.7, targets),
                rounds=rounds,
                how="median over rounds of wall times, workers started before",
            ),
        ],
    }


def _at_least(target: float, wanted: bool) -> dict[str, float]:
    return {"at_least": target} if wanted else {}


def probes(count: int, replicates: int = 1) -> Study:
    values = list(range(count // replicates))
    return study_from(
        {"name": "trivial", "kind": "probe", "grid": {"value": values}, "replicates": replicates, "chunk": 1}
    )


def _trivial(count: int, workers: int | None) -> tuple[float, float]:
    """(tasks a second, bytes of the store a task)."""
    study = probes(count)
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        finished = run_study(study, folder, None if workers is None else lambda stop: Processes(workers))
        seconds = perf_counter() - start
        _check(finished, count)
        return count / seconds, (Path(folder) / NAME).stat().st_size / count


def _check(finished: Finished, count: int) -> None:
    if (finished.done, finished.failed) != (count, 0):
        raise RuntimeError(f"Not all tasks were done: {finished}")


def trivial_tasks(count: int) -> Callable[[], float]:
    """Work whose memory is measured, 100 replicates a point; returns what was resident before, in MB."""
    before = _resident()

    def work() -> float:
        with tempfile.TemporaryDirectory() as folder:
            _check(run_study(probes(count, replicates=100), folder), count)
        return before / 1e6

    return work


def _second_process(quick: bool) -> tuple[float, list[float]]:
    """Wall time of one process over that of two, in each round; the results must be the same bytes."""
    study = load_study(GAUSSIAN, quick=quick)
    study = study.model_copy(update={"replicates": 4 if quick else 10, "chunk": 2 if quick else 5})
    ratios = []
    for _ in range(1 if quick else 3):
        (one, first), (two, second) = (_timed(study, workers) for workers in (1, 2))
        if first != second:
            raise RuntimeError("One process and two gave different results.")
        ratios.append(one / two)
    return median(ratios), ratios


def _timed(study: Study, workers: int) -> tuple[float, dict[bytes, bytes]]:
    pool = Processes(workers, study.threads)
    while not pool.ready:
        pool.collect(0.1)
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        run_study(study, folder, lambda stop: pool)
        seconds = perf_counter() - start
        with open_run(folder) as run:
            return seconds, dict(run.rows("SELECT id, result FROM results"))
