"""Peak memory of one piece of work, in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path

HOW = (
    "peak resident memory (VmHWM, reset just before the work; mapped file pages count) minus resident memory before, "
    "fresh process"
)


def peak_growth(benchmark: str, prepare: str, *args: object) -> tuple[float, object]:
    """(growth in MB, result) of `work()`, where `benchmarks.<benchmark>.<prepare>(*args)` returns `work`.

    What `prepare` holds before the work starts is not counted. The result must be fit for JSON.
    """
    command = [sys.executable, "-m", "benchmarks._memory", benchmark, prepare, json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    if done.returncode:
        raise RuntimeError(f"The process that measures memory failed:\n{done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["growth"] / 1e6, answer["result"]


def _measure(benchmark: str, prepare: str, args: str) -> None:
    work = getattr(import_module(f"benchmarks.{benchmark}"), prepare)(*json.loads(args))
    before = _resident()
    result = work()
    print(json.dumps({"growth": _peak() - before, "result": result}))


def _resident() -> int:
    """Bytes resident now. From here on the peak counts afresh, where the system can do that."""
    if not Path("/proc/self/clear_refs").exists():
        return _peak()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    if Path("/proc/self/status").exists():
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":"))


if __name__ == "__main__":
    _measure(*sys.argv[1:])
