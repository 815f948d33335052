"""Studies: a specification becomes tasks, an executor runs them, a store keeps what they found."""

from attnlimit.errors import RunLocked, StoreError, WorkersLost, needs

with needs("Studies need pydantic, pyyaml, filelock and pyarrow", "studies"):
    import filelock  # noqa: F401
    import pydantic  # noqa: F401
    import yaml  # noqa: F401

from attnlimit.doors import doors
from attnlimit.studies.coordinator import Finished, Progress, run_study
from attnlimit.studies.estimate import Cost, estimate
from attnlimit.studies.executors import Serial
from attnlimit.studies.executors.dask import Dask, connect
from attnlimit.studies.executors.processes import Processes
from attnlimit.studies.spec import Precision, Study, load_study, study_from
from attnlimit.studies.stop import Stop
from attnlimit.studies.view import Findings, State, StudyRun, derive, export, find_runs, open_run, summary

__all__ = [
    "Cost",
    "Dask",
    "Findings",
    "Finished",
    "Precision",
    "Processes",
    "Progress",
    "RunLocked",
    "Serial",
    "State",
    "Stop",
    "StoreError",
    "Study",
    "StudyRun",
    "WorkersLost",
    "connect",
    "derive",
    "estimate",
    "export",
    "find_runs",
    "load_study",
    "open_run",
    "run_study",
    "study_from",
    "summary",
]

doors(__name__)
