"""What the page shows of a study."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnlimit.errors import MissingExtra
from attnlimit.numerics.words import counted
from attnlimit.report.html.page import Page, Picture, Sheet

KINDS = {
    "convergence": "Monte Carlo error curves",
    "exact": "exact error curves",
    "analyze": "models, head by head",
    "icl": "in-context learning",
}
CAPTIONS = {
    "curves": ("Error against the number of tokens", "Both axes are logarithmic; bands are 95 % intervals."),
    "risks": ("Risk against the prompt length", "When training ends; intervals are over replicates."),
    "slopes": (
        "How fast it falls",
        "Exponents fitted to the curves, with intervals, against the head's horizon.",
    ),
}


def study(folder: str | Path) -> Page:
    """The page of a study's run directory, finished or not."""
    from attnlimit.studies import open_run, summary

    with open_run(folder) as run:
        return study_page(summary(run))


def study_page(record: Mapping[str, Any]) -> Page:
    """The same from a study's summary."""
    about, points = record["study"], record["points"]
    return Page(
        title=f"{about['name']}: a study, attnlimit",
        eyebrow="attnlimit sweep",
        heading=about["name"],
        chips=[
            KINDS.get(about["kind"], about["kind"]),
            counted(len(points), "point"),
            f"{record['done']:,} of {record['total']:,} tasks",
            f"seed {about['seed']}",
        ],
        summary=[text for text in (about["about"], _state(record), _slopes(points), _risks(points)) if text],
        figures=drawn(record),
        tables=[_table(points)] if points else [],
        methods=_methods(record),
    )


def drawn(record: Mapping[str, Any]) -> list[Picture]:
    """The study's figures, as SVG; none without matplotlib."""
    from attnlimit.report.figures.study import figures

    try:
        made = figures(dict(record))
    except MissingExtra:
        return []
    found = []
    for name, figure in made.items():
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        title, caption = CAPTIONS.get(name, (name.replace("_", " ").capitalize(), ""))
        found.append(Picture(title, file.getvalue(), "svg+xml", caption))
    return found


def _state(record: Mapping[str, Any]) -> str:
    points = record["points"]
    done = "All tasks are done" if record["done"] == record["total"] else "Not all tasks are done yet"
    failed = f"; {record['failed']:,} failed" if record["failed"] else ""
    if not points:
        return f"{done}{failed}; no point has results yet."
    varies = [
        f"{_short(path)} ({_range(point['varies'][path] for point in points)})"
        for path in points[0]["varies"]
    ]
    what = f", which differ in {' and '.join(varies)}" if varies else ""
    return f"{counted(len(points), 'point')}{what}. {done}{failed}."


def _slopes(points: list[dict[str, Any]]) -> str:
    fitted = sorted(
        (point for point in points if point.get("fit")), key=lambda point: point["fit"]["exponent"]
    )
    if not fitted:
        return ""
    low, high = fitted[0], fitted[-1]
    text = "The error falls as a power of the number of tokens n. "
    if low is high:
        text += f"The exponent is {_fit(low)}."
    else:
        text += f"Its exponent runs from {_fit(low)} at {_label(low)} to {_fit(high)} at {_label(high)}."
    known = [point for point in fitted if point.get("rates")]
    if known:
        at_least = sum(point["fit"]["interval"][1] >= point["rates"]["paper"] for point in known)
        text += (
            f" At {at_least} of {len(known)} points it is no less than the published exponent, within its interval; "
            "that one is a limit, which the slope at finite n need not have reached."
        )
    return text


def _risks(points: list[dict[str, Any]]) -> str:
    """Of the first point where models were trained: its risk at the shortest and the longest prompt."""
    point = next((one for one in points if one.get("lengths") and one.get("risk")), None)
    if point is None:
        return ""
    lengths, risk, limit = point["lengths"], point["risk"], point.get("infinite_risk")
    text = f"Trained on prompts of {lengths[0]:,} tokens, {point['attention']} attention ends with risk {risk[0]:.3g}"
    if len(lengths) > 1:
        text += f"; on {lengths[-1]:,} tokens, with {risk[-1]:.3g}"
    if limit:
        text += f" (the same weights on infinite prompts: {limit[-1]:.3g})"
    return text + (f". This is at {_label(point)}." if len(points) > 1 else ".")


def _fit(point: Mapping[str, Any]) -> str:
    fit = point["fit"]
    low, high = fit["interval"]
    return f"{fit['exponent']:.3f} ({100 * fit['level']:g} % interval {low:.3f} to {high:.3f})"


def _table(points: list[dict[str, Any]]) -> Sheet:
    rows = [row for point in points for row in _rows(point)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Sheet("All points", columns, [[row.get(c) for c in columns] for row in rows])


def _rows(point: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One, or one for each prompt length where models were trained."""
    first = _row(point)
    if "lengths" not in point:
        return [first]
    found = []
    for k, length in enumerate(point["lengths"]):
        row = {**first, "prompt length": length}
        for name in ("risk", "infinite_risk", "gradient_gap", "parameter_gap"):
            if name in point:
                row[_short(name)] = point[name][k]
            if name == "risk" and "risk_interval" in point:
                row["95 % from"], row["95 % to"] = (ends[k] for ends in point["risk_interval"])
        found.append(row)
    return found


def _row(point: Mapping[str, Any]) -> dict[str, Any]:
    """What varies, the point's own single numbers and words, its last error, fitted slope and limits."""
    row = {_short(path): value for path, value in point["varies"].items()}
    skip = ("point", "method", "reference", "no_fit", "schema")
    for name, value in point.items():
        if name not in skip and isinstance(value, int | float | str) and _short(name) not in row:
            row[_short(name)] = value
    if point.get("rms") and point.get("n"):
        row["largest n"], row["rms error there"] = point["n"][-1], point["rms"][-1]
    if point.get("fit"):
        fit = point["fit"]
        level = f"{100 * fit['level']:g} %"
        row["exponent"], (row[f"{level} from"], row[f"{level} to"]) = fit["exponent"], fit["interval"]
    if point.get("rates"):
        row["published, n → ∞"] = point["rates"]["paper"]
    return row


def _methods(record: Mapping[str, Any]) -> list[tuple[str, object]]:
    about, points, sessions = record["study"], record["points"], record["sessions"]
    found: list[tuple[str, object]] = [("Study", f"{about['name']} ({about['kind']})")]
    for title, key in (("Method", "method"), ("Compared with", "reference")):
        texts = list(dict.fromkeys(point[key] for point in points if point.get(key)))
        if texts:
            more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
            found.append((title, "; ".join(texts[:3]) + more))
    fits = list(dict.fromkeys(point["fit"]["method"] for point in points if point.get("fit")))
    if fits:
        found.append(("Fit", fits[0]))
    found.append(("Seed", f"{about['seed']}; each task's own is derived from it and from what it computes"))
    if sessions:
        last = sessions[-1]
        found.append(("Versions", ", ".join(f"{name} {text}" for name, text in last["versions"].items())))
        found.append(("Machine", f"{last['hardware']['processor']}, {last['hardware']['cores']} cores; {last['executor']}"))  # fmt: skip
    return found


def _range(values: Iterable[Any]) -> str:
    """Numbers by their ends, words by name.

    >>> _range([0.3, 2.0, 1.0]), _range(["map", "mean", "map"])
    ('0.3 to 2', 'map, mean')
    """
    known = list(dict.fromkeys(values))
    numbers = [x for x in known if isinstance(x, int | float) and math.isfinite(x)]
    if len(numbers) == len(known) > 1:
        return f"{min(numbers):g} to {max(numbers):g}"
    return ", ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in known[:6]) + (
        ", …" if len(known) > 6 else ""
    )


def _label(point: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{_short(path)} {_range([value])}" for path, value in point["varies"].items())
        or "the only point"
    )


def _short(path: str) -> str:
    return path.rpartition(".")[2].replace("_", " ")
