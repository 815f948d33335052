"""attnlimit icl: a study of training on finite prompts, beside the infinite-prompt limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnlimit.cli.common import AsJson, guarded, out, print_json, table
from attnlimit.cli.sweep import Dask, Folder, Quick, Resume, Workers, carried_out, chosen, failed
from attnlimit.errors import InputError
from attnlimit.files.records import finite, write_table

if TYPE_CHECKING:
    from attnlimit.icl.comparison import Comparison


@guarded
def icl(
    source: Annotated[
        Path, typer.Argument(metavar="SPEC|RUN", help="A study of kind icl, e.g. examples/icl-risk.yaml.")
    ],
    quick: Quick = False,
    resume: Resume = False,
    workers: Workers = None,
    dask: Dask = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Train attention on finite prompts and set it against the infinite-prompt flow: risks, gaps, rates.

    The same as `attnlimit sweep` of the study, with its tables in words of in-context learning and as risks.csv. Trainings
    that were stopped go on from their last checkpoint.
    """
    from attnlimit.studies import open_run
    from attnlimit.studies.kinds.icl import comparisons

    study, folder = chosen(source, folder, quick=quick, resume=resume)
    if study.kind != "icl":
        raise InputError(f"{source} is a study of kind {study.kind}, not icl: run it with attnlimit sweep.")
    finished, record = carried_out(study, folder, workers, dask)
    with open_run(folder) as run:
        found = comparisons(run.found())
    if found:
        write_table(folder / "risks.csv", [{"task": one.name, **row} for one in found for row in one.rows()])
    if as_json:
        print_json(finite({**record, "comparisons": [one.to_dict() for one in found]}))
    else:
        for one in found:
            _say(one)
        files = "report.html, summary.json, results.parquet, risks.csv, figures"
        out.print(f"Run: {folder} ({files})", highlight=False, markup=False, soft_wrap=True)
    if finished.failed:
        failed(finished, record["failures"])


def _say(one: Comparison) -> None:
    columns, rows = ["L"], []
    for name in one.runs:
        columns += [name] + ["predicted"] * (name in one.predicted)
    columns += ["floor"] * (one.floors is not None) + ["L = ∞"] * (one.solution is not None)
    for m, length in enumerate(one.lengths):
        cells = [f"{length:,}"]
        for name in one.runs:
            ends = one.ending(name)
            cells.append(f"{float(ends.mean[m]):.3g} ± {float(ends.high[m] - ends.mean[m]):.1g}")
            cells += [f"{float(one.predicted[name][m]):.3g}"] if name in one.predicted else []
        cells += [] if one.floors is None else [f"{one.floors[m].value:.3g}"]
        cells += [] if one.solution is None else [f"{float(one.solution[m]):.3g}"]
        rows.append(cells)
    out.print(table(f"{one.name}: risk after training, ± 95 % over seeds", columns, rows))
    if constants := one.constants():
        told = ", ".join(f"{value:.3g}/L ({name})" for name, value in constants.items())
        words = f"Predicted as L → ∞: risk {told}; with the L = ∞ weights ∝ L^−{one.exponent():.3g}."
        out.print(words, highlight=False, markup=False, soft_wrap=True)
    rates = one.rates()
    if rates:
        out.print("Exponents fitted over the longer half of the lengths:", highlight=False)
    for rate in rates:
        interval = "" if rate.low != rate.low else f"  [{rate.low:.2f}, {rate.high:.2f}]"
        words = f"  {rate.exponent:5.2f}{interval}  {rate.attention}: {rate.quantity}"
        out.print(words, highlight=False, markup=False, soft_wrap=True)
