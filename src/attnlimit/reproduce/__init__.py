"""Published results and ours, each with one command: studies to run, a figure, and what it says of the claim.

A result is a module here with `RESULTS`, and its studies in specs/.
"""

from attnlimit.reproduce.catalogue import find, names
from attnlimit.reproduce.result import Outcome, Reproduction, Runs, Verdict
from attnlimit.reproduce.run import OUT, Interrupted, Prepared, Reproduced, prepare, run

__all__ = [
    "OUT",
    "Interrupted",
    "Outcome",
    "Prepared",
    "Reproduced",
    "Reproduction",
    "Runs",
    "Verdict",
    "find",
    "names",
    "prepare",
    "run",
]
