"""attnlimit compare: budgets beside what people would use instead, at equal keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import AsJson, err, out, print_json, progress, share, table
from attnlimit.cli.model_options import Device, Dtype, Seeds, Text, tell
from attnlimit.errors import AttnlimitError, InputError, MissingExtra
from attnlimit.files.records import can_write
from attnlimit.report.figures.style import save

if TYPE_CHECKING:
    from attnlimit.models.judge import Comparison
    from attnlimit.models.judge.compare import Point
    from attnlimit.models.see.load import Loaded


def compare(
    run: Annotated[Path, typer.Argument(help="Folder that attnlimit analyze wrote.")],
    model: Annotated[
        str | None, typer.Option(help="Where the model is now (default: as the run names it).")
    ] = None,
    keys: Annotated[str, typer.Option(help="Shares of all keys: 5%,10%,20% or 0.05,0.1,0.2.")] = "5%,10%,20%",
    windows: Annotated[int, typer.Option(help="Windows of text that the analysis did not read.")] = 4,
    seeds: Seeds = 1,
    text: Text = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """The run's budgets beside other methods that read as many keys: what each does to the model's answer."""
    shares, found = _shares(keys), al.Run.load(run)
    folder = run if run.is_dir() else run.parent
    can_write(folder / "compare.json")
    given = al.documents(text or None)
    loaded = _model(found, model, device, dtype)
    if other := loaded.unlike(found.facts.model, found.facts.weights):
        err.print(
            f"{run} is of {other}, and this is {loaded.name}: its budgets hold for the model that was analysed."
        )
    with progress("percent") as step:
        result = al.compare(
            loaded, found, given, keys=shares, windows=windows, seeds=range(seeds), progress=step
        )
    try:
        result.save(folder / "compare.json")
        try:
            save(result.plot(), folder / "compare.png")
        except MissingExtra as missing:
            err.print(f"No figure: {missing}")
        report = al.write_report(folder)
    finally:  # a full disk loses nothing
        if as_json:
            print_json(result.to_dict())
        else:
            _show(result)
    if not as_json:
        out.print(f"Written: {folder}/compare.json, compare.png\nReport: {report}")


def _model(run: al.Run, model: str | None, device: str | None, dtype: str | None) -> Loaded:
    name = run.facts.model if model is None else model
    try:
        loaded = al.load(name, device=device, dtype=dtype, note=tell)
        same = loaded.kind == run.facts.kind
        return loaded if same else al.load(name, device=device, dtype=dtype, task=run.facts.kind, note=tell)
    except AttnlimitError as problem:
        if model is not None:
            raise
        raise InputError(
            f"The run's model {name!r} cannot be loaded by that name: say where it is with --model. ({problem})"
        ) from problem


def _shares(text: str) -> list[float]:
    """5% and 0.05 are the same.

    >>> _shares("5%, 0.1,20 %")
    [0.05, 0.1, 0.2]
    """
    found = [share(part.replace(" ", ""), "keys") for part in text.split(",")]
    if not all(0 < one <= 1 for one in found):
        raise InputError(
            f"--keys must be shares of all keys such as 5%,10% or 0.05,0.1, at most 100%; got {text!r}."
        )
    return found


def _show(result: Comparison) -> None:
    rows = [
        (
            name,
            f"{100 * point.asked:.3g}%",
            f"{point.read:.1%}",
            _by_key_head(point),
            f"{measured!r}" if result.windows * len(result.seeds) > 1 else f"{measured.value:.3g}",
            _predicted(point),
        )
        for name, point, measured in result.rows()
    ]
    title = f"{result.model}: {result.words}"
    out.print(
        table(
            title, ["method", "asked", "keys read", "by key head", "change of the answer", "predicted"], rows
        )
    )
    colour = "red" if result.above else "green"
    out.print(result.verdict, style=f"bold {colour}")


def _predicted(point: Point) -> str:
    known = point.predicted
    return "–" if known is None else f"{known.value:.4g} [{known.low:.3g}, {known.high:.3g}]"


def _by_key_head(point: Point) -> str:
    return "–" if point.by_key_head is None else f"{point.by_key_head:.1%}"
