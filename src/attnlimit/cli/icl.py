"""attnlimit icl: a study of training on finite prompts, beside the infinite-prompt limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import AsJson, folder_out, out, print_json, table
from attnlimit.errors import InputError
from attnlimit.files.records import write_table

if TYPE_CHECKING:
    from attnlimit.icl.training import Comparison
    from attnlimit.studies import Findings


def icl(
    source: Annotated[
        Path, typer.Argument(metavar="SPEC|RUN", help="A study of kind icl, e.g. examples/icl-risk.yaml.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="The file's quick size: under a minute.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that is there.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: one a core; 1 runs in this process).")
    ] = None,
    folder: Annotated[Path | None, folder_out("Run directory (default: attnlimit-out/NAME).")] = None,
    as_json: AsJson = False,
) -> None:
    """Train attention on finite prompts and set it against the infinite-prompt flow: risks, gaps, rates.

    The same as `attnlimit sweep` of the study, told in tables of in-context learning (also as risks.csv). A training that was
    stopped goes on from its last checkpoint.
    """
    from attnlimit.cli.studies import go, study_of  # needs an extra

    study, folder = study_of(source, folder, quick, resume)
    if study.kind != "icl":
        raise InputError(f"{source} is a study of kind {study.kind}, not icl: run it with attnlimit sweep.")
    go(study, folder, workers, None, as_json, tell=_tell)


def _tell(found: Findings, folder: Path, as_json: bool) -> None:
    from attnlimit.studies.kinds.icl import comparisons

    tasks = comparisons(found.points)
    if tasks:
        write_table(folder / "risks.csv", [{"task": one.name, **row} for one in tasks for row in one.rows()])
    if as_json:
        print_json({**al.studies.summary(found), "comparisons": [one.to_dict() for one in tasks]})
        return
    for one in tasks:
        _say(one)
    files = "report.html, summary.json, results.parquet, risks.csv, figures"
    out.print(f"Run: {folder} ({files})")


def _say(one: Comparison) -> None:
    columns, rows = ["L"], []
    for name in one.runs:
        columns += [name] + ["predicted"] * (name in one.predicted)
    columns += ["floor"] * (one.floors is not None) + ["L = ∞"] * (one.solution is not None)
    for m, length in enumerate(one.lengths):
        cells = [f"{length:,}"]
        for name in one.runs:
            ends = one.ending(name)
            reach = float(ends.high[m] - ends.mean[m])
            spread = "" if reach != reach else f" ± {reach:.1g}"  # one seed has none
            cells.append(f"{float(ends.mean[m]):.3g}{spread}")
            cells += [f"{float(one.predicted[name][m]):.3g}"] if name in one.predicted else []
        cells += [] if one.floors is None else [f"{one.floors[m].value:.3g}"]
        cells += [] if one.solution is None else [f"{float(one.solution[m]):.3g}"]
        rows.append(cells)
    out.print(table(f"{one.name}: risk after training, ± 95 % over seeds", columns, rows))
    if constants := one.constants():
        told = ", ".join(f"{value:.3g}/L ({name})" for name, value in constants.items())
        words = f"Predicted as L → ∞: risk {told}; with the L = ∞ weights ∝ L^−{one.exponent():.3g}."
        out.print(words)
    rates = one.rates()
    if rates:
        out.print("Exponents fitted over the longer half of the lengths:")
    for rate in rates:
        interval = "" if rate.low != rate.low else f"  [{rate.low:.2f}, {rate.high:.2f}]"
        words = f"  {rate.exponent:5.2f}{interval}  {rate.attention}: {rate.quantity}"
        out.print(words)
