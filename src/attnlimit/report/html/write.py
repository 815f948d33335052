"""The report of a run's folder."""

from __future__ import annotations

from pathlib import Path

from attnlimit.doors import door
from attnlimit.errors import InputError
from attnlimit.files.records import write_text
from attnlimit.models.analyse.run import Run
from attnlimit.models.explain.result import Explanation
from attnlimit.models.judge.compare import Comparison, known_by
from attnlimit.report.html.analysis import analysis, with_comparison
from attnlimit.report.html.explain import explanation
from attnlimit.report.html.page import Page, page


@door
def write_report(folder: str | Path, file: str | Path | None = None) -> Path:
    """Write the report of the run in `folder`, a study's or a model's, by default as report.html beside its files."""
    folder = Path(folder)
    folder = folder.parent if folder.is_file() else folder
    target = folder / "report.html" if file is None else Path(file)
    return write_text(target, page(report_page(folder)))


def report_page(folder: Path) -> Page:
    """The page of the run that the folder holds."""
    if (folder / "store.sqlite").is_file():
        from attnlimit.report.html.study import study_page  # needs the extra "studies"
        from attnlimit.studies import open_run

        with open_run(folder) as study:
            return study_page(study.findings())
    if (folder / "summary.json").is_file() and not (folder / "run.json").exists():
        raise InputError(
            f"{folder} is no run of a study: there is no store.sqlite beside its summary.json. In-context runs of before are not read; "
            "run them again as a study, e.g. attnlimit icl examples/icl-risk.yaml."
        )
    if (folder / "explain.json").is_file() and not (folder / "run.json").exists():
        return explanation(Explanation.load(folder / "explain.json"))
    run = Run.load(folder)
    shown, compared = analysis(run, str(folder)), folder / "compare.json"
    if compared.is_file():
        found = Comparison.load(compared)
        if found.run == known_by(run.facts):  # else it is of an earlier analysis in this folder
            return with_comparison(shown, found)
    return shown
