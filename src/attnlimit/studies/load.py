"""Reading a study, and the small version of it that --quick runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnlimit.files.yamlfile import read_yaml, validated
from attnlimit.studies.fields import with_digests
from attnlimit.studies.points import check_points
from attnlimit.studies.spec import Study, put

QUICK_REPLICATES, QUICK_VALUES = 8, 3


def load_study(path: str | Path, *, quick: bool = False) -> Study:
    """The study of a YAML file; InputError names the line and the field of what is wrong. Files that it names are
    found from its own folder, and are held to the content they have now."""
    data, lines = read_yaml(path)
    study = validated(Study, data, lines, path)
    if quick:
        study = validated(Study, quicker(data), lines, path)
    held = with_digests(study.model_dump(mode="json"), Path(path).resolve().parent)
    study = Study.model_validate(held)
    check_points(study, lines, path)
    return study


def study_from(data: dict[str, Any]) -> Study:
    """The study of plain data, for programs that make their own; files are found from the current folder."""
    study = validated(Study, with_digests(data, Path.cwd()), {}, "the study")
    check_points(study, {}, "the study")
    return study


def quicker(data: dict[str, Any]) -> dict[str, Any]:
    """What --quick runs: the file's own `quick` values, or few replicates, and the ends and middle of every axis."""
    changed = {**data, "quick": {}, "name": f"{data['name']}-quick"}
    if data.get("quick"):
        for path, value in data["quick"].items():
            put(changed, path, value)
        return changed
    changed.pop("precision", None)
    changed["replicates"] = min(int(data.get("replicates", 1)), QUICK_REPLICATES)
    changed["grid"] = {path: _few(values) for path, values in data.get("grid", {}).items()}
    return changed


def _few(values: list[Any]) -> list[Any]:
    if len(values) <= QUICK_VALUES:
        return values
    return [values[round(k * (len(values) - 1) / (QUICK_VALUES - 1))] for k in range(QUICK_VALUES)]
