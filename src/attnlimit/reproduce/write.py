"""What a reproduction leaves behind: figure, table, verdicts, report. All can be made again from its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnlimit.errors import MissingExtra
from attnlimit.files.records import finite, write_json, write_table, write_text
from attnlimit.report.figures.style import save
from attnlimit.report.html.other import other
from attnlimit.report.html.page import Page, Sheet, page
from attnlimit.reproduce.result import Outcome, Reproduction, Runs, Verdict
from attnlimit.studies.machine import versions
from attnlimit.studies.store import said

SCHEMA = "attnlimit.reproduce/1"


def write(
    folder: Path, result: Reproduction, runs: Runs, verdicts: Sequence[Verdict], quick: bool
) -> tuple[dict[str, Any], list[Path]]:
    """The record and the files: figure.png and .pdf, table.parquet and .csv, verdict.json, report.html."""
    record = describe(result, runs, verdicts, quick)
    written = []
    try:
        figure = result.figure(runs)
        for ending in ("png", "pdf"):
            written.append(save(figure, folder / f"figure.{ending}"))
    except MissingExtra as missing:
        record["no_figure"] = str(missing)
    rows = result.table(runs)
    with said(folder):
        written += [write_table(folder / f"table.{ending}", rows) for ending in ("parquet", "csv")]
        written.append(write_json(folder / "verdict.json", finite(record)))
        written.append(write_text(folder / "report.html", page(_report(folder, verdicts))))
    return record, written


def _report(folder: Path, verdicts: Sequence[Verdict]) -> Page:
    """The page: verdicts without their notes, which the text above has."""
    data = other(folder, folder / "verdict.json")
    shown = [{"verdict": one.outcome.value, **one.to_dict()} for one in verdicts]
    names = ("verdict", "claim", "predicted", "measured", "low", "high")
    rows = [[one[name] for name in names] for one in shown]
    columns = [*names[:4], "95 % from", "to"]
    return replace(data, tables=[Sheet("Verdicts", columns, rows)])


def describe(result: Reproduction, runs: Runs, verdicts: Sequence[Verdict], quick: bool) -> dict[str, Any]:
    """What verdict.json holds."""
    told = [f"Claim: {result.claim}", words(verdicts)]
    if quick:
        told.append("A quick run: fewer points and replicates than the paper-size one.")
    told += [*result.notes, *(result.said(runs) if result.said is not None else ())]
    told += list(dict.fromkeys(verdict.note for verdict in verdicts if verdict.note))
    return {
        "schema": SCHEMA,
        "name": result.name,
        "title": result.title,
        "claim": result.claim,
        "source": result.source,
        "size": "quick" if quick else "paper",
        "summary": told,
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "studies": [
            {"study": name, "kind": one["study"]["kind"], "points": len(one["points"]), "tasks": one["total"], "seed": one["study"]["seed"]}
            for name, one in runs.items()
        ],
        "versions": versions(),
    }  # fmt: skip


def words(verdicts: Sequence[Verdict]) -> str:
    """How many claims came out how.

    >>> words([Verdict("a", 1.0, 1.0, None, Outcome.AGREES), Verdict("b", 1.0, 2.0, None, Outcome.DIFFERS)])
    'Of 2 comparisons, 1 agrees, 1 differs.'
    """
    if not verdicts:
        return "Nothing was compared."
    counts = [(sum(one.outcome is outcome for one in verdicts), outcome) for outcome in Outcome]
    return f"Of {len(verdicts)} comparisons, {', '.join(_counted(*pair) for pair in counts if pair[0])}."


def _counted(count: int, outcome: Outcome) -> str:
    verb = {Outcome.AGREES: "agree", Outcome.DIFFERS: "differ", Outcome.CANNOT_TELL: "cannot be told"}[
        outcome
    ]
    return f"{count} {verb}{'s' if count == 1 and outcome is not Outcome.CANNOT_TELL else ''}"
