"""What the page shows of in-context training on finite prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnlimit.report.html.page import Page, Picture, Sheet

FIGURES = {
    "risk": "Risk against prompt length",
    "trajectory": "Along training",
    "lengths": "On other prompt lengths",
}


def icl_page(record: Mapping[str, Any], folder: Path, figures: list[Picture]) -> Page:
    """The page of the summary of `attnlimit icl`; `figures` are those found beside it."""
    tasks, methods = list(record["tasks"]), record["methods"]
    attentions = list(methods[tasks[0]])
    lengths = sorted({row["length"] for row in record["risks"]})
    return Page(
        title=f"{record['title']}, attnlimit",
        eyebrow="attnlimit icl",
        heading=record["title"],
        chips=[
            record["name"],
            f"{' and '.join(attentions)} attention",
            f"prompts of {lengths[0]:,} to {lengths[-1]:,} tokens",
        ],
        summary=[_words(record, task, attentions) for task in tasks],
        figures=[replace(one, title=_title(one.title, tasks)) for one in sorted(figures, key=_order)],
        tables=[
            _table("Risk after training, 95 % intervals over seeds", record["risks"]),
            _table("Exponents fitted over the longer half of the lengths, 95 % intervals", record["rates"]),
        ],
        methods=_methods(record),
    )


def _words(record: Mapping[str, Any], task: str, attentions: list[str]) -> str:
    """The risks at the longest prompt, beside the floor and the infinite-prompt solution."""
    last = max((row for row in record["risks"] if row["task"] == task), key=lambda row: row["length"])
    parts = []
    for name in attentions:
        parts.append(
            f"{name} attention ends with risk {last[name]:.3g} ({last[f'{name}_low']:.3g} to {last[f'{name}_high']:.3g})"
        )
        if last.get(f"{name}_predicted") is not None:
            parts[-1] += f", predicted {last[f'{name}_predicted']:.3g} without training"
    text = f"{task}: trained on prompts of {last['length']:,} tokens, {'; '.join(parts)}."
    if last.get("floor") is not None:
        text += f" No method can do better than {last['floor']:.3g} there ({record['floors'][task]})."
    if last.get("solution") is not None:
        text += f" The infinite-prompt solution has {last['solution']:.3g} at that length."
    constants = record.get("long_prompt_constants", {}).get(task)
    if constants:
        told = ", ".join(f"{value:.3g}/L ({name})" for name, value in constants.items())
        text += f" Predicted for long prompts: risk {told}."
    return text


def _order(figure: Picture) -> int:
    first = figure.title.lower().split()[0]
    return [*FIGURES, first].index(first)


def _title(name: str, tasks: list[str]) -> str:
    """risk-0 as "Risk against prompt length: the first task".

    >>> _title("Lengths linear 1", ["Σ = I", "Σ = 2I"])
    'On other prompt lengths, linear: Σ = 2I'
    """
    first, *rest = name.lower().split()
    place = rest.pop() if rest and rest[-1].isdigit() and int(rest[-1]) < len(tasks) else None
    words = ", ".join([FIGURES.get(first, first.capitalize()), *rest])
    return words if place is None else f"{words}: {tasks[int(place)]}"


def _table(title: str, rows: list[dict[str, Any]]) -> Sheet:
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "lengths"))
    shown = [
        name.replace("_low", " from").replace("_high", " to").replace("_predicted", ", predicted")
        for name in columns
    ]
    shown = [name.replace("solution", "L = ∞ weights") for name in shown]
    return Sheet(title, shown, [[row.get(name) for name in columns] for row in rows])


def _methods(record: Mapping[str, Any]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [(f"Task {name}", text) for name, text in record["tasks"].items()]
    known = dict.fromkeys(text for each in record["methods"].values() for text in each.values())
    found += [("Training", text) for text in known]
    if "seed" in record:
        found.append(("Seed", record["seed"]))
    if record.get("versions"):
        found.append(("Versions", ", ".join(f"{name} {text}" for name, text in record["versions"].items())))
    return found
