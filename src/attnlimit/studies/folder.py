"""What a run directory holds beside its store: files for people, all of which can be made again from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from attnlimit.files.records import write_json
from attnlimit.studies.spec import Study
from attnlimit.studies.store import said
from attnlimit.studies.tables import export, replacing, write_summary
from attnlimit.studies.view import StudyRun

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the compiled one, where there is one
STUDY, MACHINE, SUMMARY, TABLE = "study.yaml", "machine.json", "summary.json", "results.parquet"


def describe(folder: Path, study: Study, sessions: list[dict[str, Any]]) -> None:
    """The resolved study, and versions and hardware of every session."""
    with replacing(folder / STUDY) as new:
        told = yaml.dump(study.model_dump(mode="json"), Dumper=DUMPER, sort_keys=False, allow_unicode=True)
        new.write_text(
            f"# Resolved: every field is here. `attnlimit sweep {STUDY}` runs it again.\n{told}", "utf-8"
        )
    with said(folder):
        write_json(folder / MACHINE, {"sessions": sessions})


def derive(run: StudyRun) -> dict[str, Any]:
    """Write the table and the summary; returns the summary."""
    describe(run.folder, run.study, run.sessions())
    export(run, run.folder / TABLE)
    return write_summary(run, run.folder / SUMMARY)
