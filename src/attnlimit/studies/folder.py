"""What a run directory holds beside its store: files for people, all of which can be made again from it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import yaml

from attnlimit.files.records import write_json
from attnlimit.studies.machine import Session
from attnlimit.studies.spec import Study
from attnlimit.studies.store import in_words
from attnlimit.studies.tables import export, replacing, write_summary
from attnlimit.studies.view import Findings, StudyRun

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the compiled one, where there is one
STUDY, MACHINE, SUMMARY, TABLE = "study.yaml", "machine.json", "summary.json", "results.parquet"


def describe(folder: Path, study: Study, sessions: list[Session]) -> None:
    """The resolved study, and versions and hardware of every session."""
    with replacing(folder / STUDY) as new:
        told = yaml.dump(study.model_dump(mode="json"), Dumper=DUMPER, sort_keys=False, allow_unicode=True)
        new.write_text(
            f"# Resolved: every field is here. `attnlimit sweep {STUDY}` runs it again.\n{told}", "utf-8"
        )
    with in_words(folder):
        write_json(folder / MACHINE, {"sessions": [asdict(one) for one in sessions]})


def derive(run: StudyRun) -> Findings:
    """Write the table and the summary; returns what they are made from."""
    found = run.findings()
    describe(run.folder, run.study, found.sessions)
    export(run, run.folder / TABLE)
    write_summary(found, run.folder / SUMMARY)
    return found
