"""attnlimit downstream: the model's task against the keys that its heads attend to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnlimit.cli.common import AsJson, err, guarded, numbers, out, print_json, progress, table
from attnlimit.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from attnlimit.models.judge.compare import Comparison
    from attnlimit.models.judge.downstream import DownstreamCurve
    from attnlimit.models.judge.intervals import Estimate


@guarded
def downstream(
    model: Annotated[
        str | None, typer.Argument(help="Hub id, folder or .gguf file (default: the packaged BERT).")
    ] = None,
    keys: Annotated[
        str, typer.Option(help="Sampled keys per head: 4,16,64 or 4:64:3 (log-spaced).")
    ] = "8,24,72",
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of attnlimit analyze: compare its optimal split with uniform keys."),
    ] = None,
    split: Annotated[str, typer.Option(help="Error that the split makes least: output or head.")] = "output",
    policy: Annotated[
        str, typer.Option(help="sampled, or kept: own token, sinks, window and top keys are always there.")
    ] = "sampled",
    text: Annotated[
        list[str] | None, typer.Option(help="Text: files, .jsonl or - (default: Wikipedia articles).")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of an example (default: 256, or the run's).")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Examples of the task (default: 32 texts, 64 windows).")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sampled runs, with seeds 0, 1, ….")] = 2,
    per_query: Annotated[
        bool,
        typer.Option("--per-query/--shared", help="Keys of each query, or one order for the whole text."),
    ] = True,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, …")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where downstream.json and figures go.")] = Path(
        "attnlimit-out/downstream"
    ),
    as_json: AsJson = False,
) -> None:
    """The model's task against keys per head: in all, by thirds of the examples' horizons, and split against uniform."""
    from attnlimit.files.records import write_json
    from attnlimit.models.analyse.run import Run
    from attnlimit.models.judge.horizons import example_horizons
    from attnlimit.models.judge.tasks import task_for
    from attnlimit.models.judge.trial import DEFAULT_TOKENS
    from attnlimit.models.see.load import load, packaged_bert
    from attnlimit.models.see.text import documents

    if policy not in ("sampled", "kept"):
        raise InputError(f"--policy must be one of sampled, kept; got {policy!r}.")
    sizes = [round(one) for one in numbers(keys, "--keys")]
    found = None if run is None else Run.load(run)
    given = documents(text or None)
    loaded = load(model or packaged_bert(), device=device, dtype=dtype)
    length = tokens
    if tokens is None:
        length = DEFAULT_TOKENS if found is None else found.facts.tokens
    common: dict[str, Any] = {"tokens": length, "examples": examples}
    with progress("horizons") as step:
        horizons = example_horizons(loaded, given, **common, progress=step)
    common |= {
        "horizons": horizons if len(horizons) >= 3 else None,
        "seeds": range(seeds),
        "per_query": per_query,
    }
    with progress("percent") as step:
        curve, comparison = _curves(loaded, given, sizes, found, split, policy, {**common, "progress": step})
    record = curve.to_dict() if comparison is None else comparison.to_dict()
    record |= {"horizons": horizons.tolist(), "policy": policy, "per_query": per_query}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "downstream.json", record)
    figures = _figures(curve, comparison, folder)
    if as_json:
        print_json(record)
        return
    _show(curve, comparison, policy, task_for(loaded).unit)
    out.print(f"Written: {folder}/downstream.json{figures}", highlight=False)


def _curves(
    loaded: Any, given: Any, sizes: list[int], run: Any, split: str, policy: str, options: dict[str, Any]
) -> tuple[DownstreamCurve, Comparison | None]:
    from attnlimit.models.budget.needed import KEEPING
    from attnlimit.models.judge.compare import compare_splits
    from attnlimit.models.judge.downstream import downstream_curve

    if run is None:
        return downstream_curve(
            loaded, given, sizes, kept=KEEPING.kept if policy == "kept" else None, **options
        ), None
    comparison = compare_splits(loaded, run, given, sizes, policy=policy, split=split, **options)
    return comparison.uniform, comparison


def _figures(curve: DownstreamCurve, comparison: Comparison | None, folder: Path) -> str:
    from attnlimit.report.figures.downstream import downstream_figure
    from attnlimit.report.figures.style import save

    drawn: Any = curve
    if comparison is not None:
        drawn = {"the same in every head": comparison.uniform, "optimal split": comparison.split}
    try:
        save(downstream_figure(drawn), folder / "downstream.png")
        if curve.third is None:  # too few examples
            return ", downstream.png"
        save(downstream_figure(curve, thirds=True), folder / "thirds.png")
    except MissingExtra as missing:
        err.print(f"No figures: {missing}", highlight=False)
        return ""
    return ", downstream.png, thirds.png"


def _show(curve: DownstreamCurve, comparison: Comparison | None, policy: str, unit: str) -> None:
    """A row a size: all examples and thirds; then the split, and the keys that it needs for the same."""
    thirds, name = curve.thirds, curve.full.name
    rows: list[list[str]] = [
        [f"{curve.keys[k]:.1f}", f"{curve.share[k]:.0%}", _short(value)]
        + [f"{part[k].value:.3f}" for part in thirds.values()]
        for k, value in enumerate(curve.values)
    ]
    full = ["all", "100%", f"{curve.full.value:.3f}"]
    rows.append(full + [f"{value:.3f}" for value in curve.full_thirds.values()])
    columns = ["keys", "of all", name, *(f"{third} H" for third in thirds)]
    out.print(table("The same number of keys in every head; H: thirds by horizon", columns, rows))
    if comparison is not None:
        pairs = zip(comparison.uniform.keys, comparison.split.values, comparison.ratios, strict=True)
        split = [[f"{keys:.1f}", _short(value), _short(ratio, 2)] for keys, value, ratio in pairs]
        columns = ["keys", name, "keys for what uniform reaches, over uniform keys"]
        out.print()
        out.print(table(f"Optimal split ({comparison.objective})", columns, split))
    kept = "own token, sinks, window and top keys kept, the rest drawn" if policy == "kept" else "all drawn"
    out.print(
        f"\nKeys: distinct ones per query and head ({kept}). {curve.per_example.shape[2]} examples, "
        f"{len(curve.seeds)} seeds, {curve.level:.0%} intervals. {name.capitalize()}: {unit}.",
        highlight=False,
        markup=False,
    )


def _short(one: Estimate, digits: int = 3) -> str:
    return f"{one.value:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}]"
