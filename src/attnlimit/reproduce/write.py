"""What a reproduction leaves behind: figure, table, verdicts, report. All can be made again from its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnlimit.errors import MissingExtra
from attnlimit.files.records import finite, write_json, write_table, write_text
from attnlimit.files.strict import from_record, read_record
from attnlimit.report.figures.style import save
from attnlimit.report.html.page import Page, Picture, Sheet, page
from attnlimit.reproduce.result import Outcome, Reproduction, Verdict, VerdictRecord
from attnlimit.studies import Findings
from attnlimit.studies.machine import versions
from attnlimit.studies.store import in_words

SCHEMA = "attnlimit.reproduce/2"
FILE = "verdict.json"


@dataclass(frozen=True)
class Record:
    """What verdict.json holds."""

    name: str
    title: str
    claim: str
    source: str
    size: str
    summary: list[str]
    verdicts: list[VerdictRecord]
    study: str
    """Behind it: its kind and size, in words."""
    versions: dict[str, str]
    no_figure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **finite(asdict(self))}

    def page(self, folder: Path) -> Page:
        """Verdicts without their notes, which the text above has."""
        columns = ("verdict", "claim", "predicted", "measured", "95 % from", "to")
        rows = [
            (one.outcome, one.claim, one.predicted, one.measured, one.low, one.high) for one in self.verdicts
        ]
        figure = folder / "figure.png"
        facts = [("Claim", self.claim), ("Source", self.source), ("Size", self.size)]
        return Page(
            title=f"{self.title}, attnlimit",
            eyebrow="attnlimit reproduce",
            heading=self.title,
            summary=self.summary,
            figures=[Picture("Figure", figure.read_bytes(), "png")] if figure.is_file() else [],
            tables=[Sheet("Verdicts", columns, rows)],
            methods=[
                *facts,
                ("Study", self.study),
                ("Versions", ", ".join(f"{name} {text}" for name, text in self.versions.items())),
            ],
        )


def write_report(folder: str | Path, file: str | Path | None = None) -> Path:
    """Write the report of a reproduction again, by default as report.html in its folder."""
    folder = Path(folder)
    record = read_record(
        folder / FILE, SCHEMA, lambda found: from_record(Record, found, "it"), "verdict", "Run it again."
    )
    return write_text(file or folder / "report.html", page(record.page(folder)))


def write(
    folder: Path, result: Reproduction, found: Findings, verdicts: Sequence[Verdict], quick: bool
) -> tuple[Record, list[Path]]:
    """The record and the files: figure.png and .pdf, table.parquet and .csv, verdict.json, report.html."""
    written, missing = [], None
    try:
        figure = result.figure(found.points)
        for ending in ("png", "pdf"):
            written.append(save(figure, folder / f"figure.{ending}"))
    except MissingExtra as problem:
        missing = str(problem)
    record = describe(result, found, verdicts, quick, missing)
    rows = [dict(row) for row in result.table(found.points)]
    with in_words(folder):
        written += [write_table(folder / f"table.{ending}", rows) for ending in ("parquet", "csv")]
        written.append(write_json(folder / FILE, record.to_dict()))
        written.append(write_text(folder / "report.html", page(record.page(folder))))
    return record, written


def describe(
    result: Reproduction,
    found: Findings,
    verdicts: Sequence[Verdict],
    quick: bool,
    no_figure: str | None = None,
) -> Record:
    """What is written of a result."""
    study, told = found.study, [f"Claim: {result.claim}", words(verdicts)]
    if quick:
        told.append("A quick run: fewer points and replicates than the paper-size one.")
    told += [*result.notes, *(result.more(found.points) if result.more is not None else ())]
    told += list(dict.fromkeys(verdict.note for verdict in verdicts if verdict.note))
    return Record(
        result.name,
        result.title,
        result.claim,
        result.source,
        "quick" if quick else "paper",
        told,
        [one.record() for one in verdicts],
        f"{study.name}: kind {study.kind}, {len(found.points)} points, {found.total} tasks, seed {study.seed}",
        versions(),
        no_figure,
    )


def words(verdicts: Sequence[Verdict]) -> str:
    """How many claims came out how.

    >>> words([Verdict("a", 1.0, 1.0, None, Outcome.AGREES), Verdict("b", 1.0, 2.0, None, Outcome.DIFFERS)])
    'Of 2 comparisons, 1 agrees, 1 differs.'
    """
    if not verdicts:
        return "Nothing was compared."
    verbs = {"agrees": "agree", "differs": "differ", "cannot tell": "cannot be told"}
    counts = [(sum(one.outcome is outcome for one in verdicts), verbs[outcome.value]) for outcome in Outcome]
    told = [f"{count} {verb}{'s' * (count == 1 and ' ' not in verb)}" for count, verb in counts if count]
    return f"Of {len(verdicts)} comparisons, {', '.join(told)}."
