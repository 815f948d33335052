"""Published results and ours, each with one command: a study to run, a figure, and what it says of the claim.

A module here has some as `RESULTS`, each with the study of its name in specs/.
"""

from attnlimit.reproduce.result import Outcome, Points, Reproduction, Verdict
from attnlimit.reproduce.run import OUT, Interrupted, Prepared, Reproduced, find, names, prepare, run
from attnlimit.reproduce.write import write_report
from attnlimit.studies.kind import plain

__all__ = [
    "OUT",
    "Interrupted",
    "Outcome",
    "Points",
    "Prepared",
    "Reproduced",
    "Reproduction",
    "Verdict",
    "find",
    "names",
    "plain",
    "prepare",
    "run",
    "write_report",
]
