"""attnlimit icl: train on finite prompts as a file says, and compare with the infinite-prompt limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnlimit.cli.common import AsJson, err, guarded, out, print_json, progress, table
from attnlimit.errors import InputError
from attnlimit.files.records import finite, write_json, write_table

if TYPE_CHECKING:
    from attnlimit.icl.spec import Spec
    from attnlimit.icl.sweep import Sweep


@guarded
def icl(
    spec: Annotated[Path, typer.Argument(help="File that says what to train, e.g. examples/icl-risk.yaml.")],
    quick: Annotated[bool, typer.Option("--quick", help="The file's quick size: under a minute.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for tables, figures and checkpoints (runs/NAME).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoints.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train attention on finite prompts and set it against the infinite-prompt flow: risks, gaps, rates.

    Writes spec.json, runs.parquet and runs.csv (every report), risks.csv, summary.json and the figures as .png and .pdf.
    """
    from attnlimit.icl.spec import read_spec
    from attnlimit.icl.sweep import sweep

    found = read_spec(spec, quick=quick)
    folder = folder or Path("runs") / (found.name + "-quick" * quick)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give --out a folder.")
    kept = folder / "checkpoints"
    kept.mkdir(parents=True, exist_ok=True)
    try:
        with progress("steps") as step:
            result = sweep(found, folder=kept, resume=resume, progress=step)
    except KeyboardInterrupt as stop:
        err.print(
            f"[bold]Interrupted.[/] Checkpoints are in {kept}; run the same command with --resume to go on."
        )
        raise typer.Exit(130) from stop
    written = _write(result, found, folder)
    if as_json:
        print_json(result.to_dict() | {"folder": str(folder), "files": [path.name for path in written]})
    else:
        _show(result, folder)


def _write(result: Sweep, spec: Spec, folder: Path) -> list[Path]:
    from attnlimit.report.html import write_report
    from attnlimit.studies.machine import versions

    runs = list(result.rows())
    paths = [write_table(folder / f"runs{ending}", runs) for ending in (".parquet", ".csv")]
    paths.append(write_table(folder / "risks.csv", result.risks()))
    paths.append(write_json(folder / "spec.json", spec.model_dump(mode="json")))
    record = {**result.to_dict(), "seed": spec.seed, "versions": versions()}
    paths.append(write_json(folder / "summary.json", finite(record)))
    return [*paths, *_figures(result, spec, folder), write_report(folder)]


def _figures(result: Sweep, spec: Spec, folder: Path) -> list[Path]:
    from attnlimit.report.figures.icl_lengths import lengths_figure
    from attnlimit.report.figures.icl_risk import risk_figure
    from attnlimit.report.figures.icl_trajectory import trajectory_figure
    from attnlimit.report.figures.style import save

    paths = []
    for place, part in enumerate(result.tasks):
        figures: dict[str, Any] = {}
        if "risk" in spec.figures:
            figures["risk"] = risk_figure(part)
        if "trajectory" in spec.figures:
            figures["trajectory"] = trajectory_figure(list(part.runs.values()), part.name)
        if "lengths" in spec.figures:
            for attention, run in part.runs.items():
                figures[f"lengths-{attention}"] = lengths_figure(run, f"{part.name}, {attention} attention")
        for name, figure in figures.items():
            paths += [save(figure, folder / f"{name}-{place}{kind}") for kind in (".png", ".pdf")]
    return paths


def _show(result: Sweep, folder: Path) -> None:
    for part in result.tasks:
        columns, rows = ["L"], []
        for attention in part.runs:
            columns += [attention] + ["predicted"] * (attention in part.predicted)
        columns += ["floor"] * (part.floors is not None) + ["L = ∞"] * (part.transferred is not None)
        for row in result.risks():
            if row["task"] != part.name:
                continue
            cells: list[object] = [f"{row['length']:,}"]
            for attention in part.runs:
                half = (row[f"{attention}_high"] - row[f"{attention}_low"]) / 2
                cells += [f"{row[attention]:.3g} ± {half:.1g}"]
                cells += [f"{row[f'{attention}_predicted']:.3g}"] * (attention in part.predicted)
            cells += [f"{row[name]:.3g}" for name in ("floor", "solution") if row[name] is not None]
            rows.append(cells)
        out.print(table(f"{part.name}: risk after training, ± 95 % over seeds", columns, rows))
        constants = part.constants()
        if constants:
            told = ", ".join(f"{value:.3g}/L ({name})" for name, value in constants.items())
            words = f"Predicted as L → ∞: risk {told}; with the L = ∞ weights ∝ L^−{part.exponent():.3g}."
            out.print(words, highlight=False, markup=False, soft_wrap=True)
        rates = part.rates()
        if rates:
            out.print("Exponents fitted over the longer half of the lengths:", highlight=False)
        for rate in rates:
            interval = "" if rate["low"] != rate["low"] else f"  [{rate['low']:.2f}, {rate['high']:.2f}]"
            words = f"  {rate['exponent']:5.2f}{interval}  {rate['attention']}: {rate['quantity']}"
            out.print(words, highlight=False, markup=False, soft_wrap=True)
    out.print(f"Tables and figures are in {folder}", highlight=False, markup=False)
