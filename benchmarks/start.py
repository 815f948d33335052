"""How long one waits before anything is computed: processor time of a new process, against that of `import torch`.

Help and the version need no torch. `import attnlimit` imports what a name needs when the name is first used, so what counts is with the
names of a small computation; `curve` is a whole command."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from statistics import median

from benchmarks._figures import figure

NAMES = "import attnlimit as al; al.Gaussian, al.Head, al.exact_error, al.horizon"
COMMAND = ["-m", "attnlimit_command"]
CALLS = {
    "torch": ["-c", "import torch"],
    "names": ["-c", NAMES],
    "help": [*COMMAND, "--help"],
    "command help": [*COMMAND, "curve", "--help"],
    "curve": [*COMMAND, "curve", "--horizon", "1"],
}


def seconds(words: list[str]) -> float:
    """User and system time, with one thread: waiting threads of a busy machine would count too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    alone = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}  # installed code is compiled
    subprocess.run([sys.executable, *words], env=alone, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(quick: bool) -> dict[str, object]:
    rounds = [{name: seconds(words) for name, words in CALLS.items()} for _ in range(2 if quick else 7)]
    best = {name: min(one[name] for one in rounds) for name in CALLS}
    over = {name: median(one[name] / one["torch"] for one in rounds) for name in CALLS}
    limits = {"help": 0.5, "command help": 0.5, "curve": 2.5}
    words = {"help": "attnlimit --help", "command help": "attnlimit curve --help", "curve": "attnlimit curve"}
    figures = [
        figure(words[name], best[name], "s", **({} if quick else {"at_most": limit}))
        for name, limit in limits.items()
    ]
    figures += [figure(f"{words[name]}, import torch = 1", over[name], "×") for name in limits]
    figures.append(
        figure("import attnlimit, with names, over torch's import", best["names"] - best["torch"], "s",
               **({} if quick else {"at_most": 0.3}))
    )  # fmt: skip
    return {"setting": f"best and median of {len(rounds)} processes, one thread", "figures": figures}
