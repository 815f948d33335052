"""Studies: a specification becomes tasks, an executor runs them, a store keeps what they found."""

from attnlimit.errors import MissingExtra

try:
    import pydantic  # noqa: F401
    import yaml  # noqa: F401
except ImportError as missing:
    raise MissingExtra(
        "Studies need pydantic, pyyaml and pyarrow: pip install 'attnlimit[studies]'."
    ) from missing

from attnlimit.studies.coordinator import Finished, Progress, run_study
from attnlimit.studies.errors import RunLocked, StoreError, WorkersLost
from attnlimit.studies.spec import Precision, Study, load_study, study_from

__all__ = [
    "Finished",
    "Precision",
    "Progress",
    "RunLocked",
    "StoreError",
    "Study",
    "WorkersLost",
    "load_study",
    "run_study",
    "study_from",
]
