"""Dask workers as jobs of a batch system, through dask-jobqueue."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from attnlimit.errors import InputError, MissingExtra
from attnlimit.files.yamlfile import read_yaml, validated
from attnlimit.studies.fields import Fields

CLUSTERS = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "oar": "OARCluster",
    "htcondor": "HTCondorCluster",
}


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
    try:
        import dask_jobqueue
    except ImportError as missing:
        raise MissingExtra(
            "Jobs of a batch system need dask-jobqueue: pip install 'attnlimit[cluster]'."
        ) from missing
    try:
        cluster = getattr(dask_jobqueue, CLUSTERS[jobs.system])(**jobs.options)
        if isinstance(jobs.jobs, Adapt):
            cluster.adapt(minimum_jobs=jobs.jobs.minimum, maximum_jobs=jobs.jobs.maximum)
        else:
            cluster.scale(jobs=jobs.jobs)
    except (TypeError, ValueError, RuntimeError, OSError) as problem:
        raise InputError(f"{path}: {jobs.system} jobs cannot be started: {problem}") from problem
    return cluster
