"""attnlimit downstream: the model's task against the keys that its heads attend to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import attnlimit as al
from attnlimit.cli.common import AsJson, err, folder_out, out, print_json, progress, table, whole_numbers
from attnlimit.cli.model_options import (
    Device,
    Dtype,
    Examples,
    Model,
    PerQuery,
    Seeds,
    Text,
    loaded_model,
    with_interval,
)
from attnlimit.errors import InputError, MissingExtra
from attnlimit.files.records import write_json
from attnlimit.numerics.words import counted
from attnlimit.report.figures.style import save

if TYPE_CHECKING:
    from attnlimit.models.judge import DownstreamCurve, SplitComparison


def downstream(
    model: Model = None,
    keys: Annotated[
        str, typer.Option(help="Sampled keys per head: 4,16,64 or 4:64:3 (log-spaced).")
    ] = "8,24,72",
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of attnlimit analyze: compare its optimal split with uniform keys."),
    ] = None,
    split: Annotated[
        str,
        typer.Option(help="Error that the split makes least: answer (against one design), output or head."),
    ] = "output",
    policy: Annotated[
        str, typer.Option(help="sampled, or kept: own token, sinks, window and top keys are always there.")
    ] = "sampled",
    text: Text = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of an example (default: 256, or the run's).")
    ] = None,
    examples: Examples = None,
    seeds: Seeds = 2,
    per_query: PerQuery = True,
    device: Device = None,
    dtype: Dtype = None,
    folder: Annotated[Path, folder_out("Where downstream.json and figures go.")] = Path(
        "attnlimit-out/downstream"
    ),
    as_json: AsJson = False,
) -> None:
    """The model's task against keys per head: in all, by thirds of the examples' horizons, and split against uniform."""
    from attnlimit.models.budget.needed import KEEPING, RANDOM
    from attnlimit.models.judge import compare_splits, downstream_curve, example_horizons

    samplings = {"sampled": RANDOM, "kept": KEEPING}
    if policy not in samplings:
        raise InputError(f"--policy must be one of {', '.join(samplings)}; got {policy!r}.")
    sizes = whole_numbers(keys, "--keys")
    found = None if run is None else al.Run.load(run)
    given = al.documents(text or None)
    loaded = loaded_model(model, device, dtype)
    if found is not None and (other := loaded.unlike(found.facts.model, found.facts.weights)):
        err.print(
            f"{run} is of {other}, and this is {loaded.name}: its split holds for the model that was analysed."
        )
    length = found.facts.tokens if tokens is None and found is not None else tokens
    trial = al.Trial(tokens=length, examples=examples, seeds=range(seeds), per_query=per_query)
    with progress("horizons") as step:
        horizons = example_horizons(loaded, trial.task_of(loaded), trial.run(loaded, given, step))
    comparison = None
    with progress("percent") as step:
        if found is None:
            way = samplings[policy]
            curve = downstream_curve(loaded, given, sizes, sampling=way, trial=trial, progress=step)
        else:
            comparison = compare_splits(
                loaded, found, given, sizes, policy=policy, split=split, trial=trial, progress=step
            )
            curve = comparison.uniform
    if len(horizons) >= 3:
        comparison = comparison and comparison.by_horizon(horizons)
        curve = curve.by_horizon(horizons)
    more = {"horizons": horizons.tolist(), "policy": policy, "per_query": per_query}
    record = (comparison or curve).to_dict() | more
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "downstream.json", record)
        figures = _figures(curve, comparison, folder)
    finally:  # a full disk loses nothing
        if as_json:
            print_json(record)
        else:
            _show(curve, comparison, policy)
    if not as_json:
        out.print(f"Written: {folder}/downstream.json{figures}")


def _figures(curve: DownstreamCurve, comparison: SplitComparison | None, folder: Path) -> str:
    from attnlimit.report.figures.downstream import thirds_figure

    try:
        save((comparison or curve).plot(), folder / "downstream.png")
        if curve.third is None:  # too few examples
            return ", downstream.png"
        save(thirds_figure(curve), folder / "thirds.png")
    except MissingExtra as missing:
        err.print(f"No figures: {missing}")
        return ""
    return ", downstream.png, thirds.png"


def _show(curve: DownstreamCurve, comparison: SplitComparison | None, policy: str) -> None:
    """A row a size: all examples and thirds; then the split, and the keys that it needs for the same."""
    thirds, name = curve.thirds, curve.full.name
    rows: list[list[str]] = [
        [f"{curve.keys[k]:.1f}", f"{curve.share[k]:.0%}", with_interval(value)]
        + [f"{part[k].value:.3f}" for part in thirds.values()]
        for k, value in enumerate(curve.values)
    ]
    full = ["all", "100%", f"{curve.full.value:.3f}"]
    rows.append(full + [f"{value:.3f}" for value in curve.full_thirds.values()])
    columns = ["keys", "of all", name, *(f"{third} H" for third in thirds)]
    out.print(table("The same number of keys in every head; H: thirds by horizon", columns, rows))
    if comparison is not None:
        pairs = zip(curve.keys, comparison.split.values, comparison.ratios, strict=True)
        split = [
            [f"{keys:.1f}", with_interval(value), with_interval(ratio, 2)] for keys, value, ratio in pairs
        ]
        columns = ["keys", name, "keys for what uniform reaches, over uniform keys"]
        out.print()
        out.print(table(f"Optimal split ({comparison.objective})", columns, split))
    kept = "own token, sinks, window and top keys kept, the rest drawn" if policy == "kept" else "all drawn"
    out.print(
        f"\nKeys: distinct ones per query and head ({kept}). {curve.per_example.shape[2]} examples, "
        f"{counted(len(curve.seeds), 'seed')}, {curve.level:.0%} intervals. {name.capitalize()}: {curve.full.unit}.",
    )
