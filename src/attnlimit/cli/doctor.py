"""attnlimit doctor: what is installed, what is missing, and what the machine has."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from attnlimit import __version__
from attnlimit.cli.common import AsJson, guarded, out, print_json

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
REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[([\w,-]+)\])?(?:>=([\w.]+))?[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?"
)


@guarded
def doctor(as_json: AsJson = False) -> None:
    """Versions, devices, cache folders, and which extras are missing with the line that installs them."""
    found = examine()
    if as_json:
        print_json(found)
        return
    for part in ("versions", "machine", "folders", "extras"):
        grid = Table(title=part, title_justify="left", box=None, show_header=False, title_style="bold")
        for cells in _rows(part, found[part]):
            grid.add_row(*cells)
        out.print(grid)
    for note in found["notes"]:
        out.print(note, highlight=False, markup=False, soft_wrap=True)


def _rows(part: str, found: dict[str, Any]) -> list[tuple[str, ...]]:
    if part == "folders":
        return [(name, escape(one["path"]), _access(one)) for name, one in found.items()]
    if part == "extras":
        return [(name, FOR.get(name, ""), _state(one)) for name, one in found.items()]
    return [(name, "–" if value is None else escape(str(value))) for name, value in found.items()]


def _state(extra: dict[str, Any]) -> str:
    missing = ", ".join(extra["missing"])
    return f"[yellow]missing: {escape(missing)}[/]" if missing else "[green]complete[/]"


def examine() -> dict[str, Any]:
    """All that the command prints, as plain data."""
    required = _requirements()
    packages = dict.fromkeys(
        name for extra, group in required.items() if extra not in PROJECT for name, _ in group
    )
    extras = {name: _extra(name, group) for name, group in required.items() if name}
    return {
        "versions": {
            "attnlimit": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in packages},
        },
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
    for line in lines:
        match = REQUIREMENT.match(line)
        if match is None:
            continue
        name, own, least, extra = match.groups()
        group = groups.setdefault(extra or "", [])
        if name == "attnlimit":
            inner.setdefault(extra or "", []).extend((own or "").split(","))
        else:
            group.append((name, least or ""))

    def whole(extra: str) -> list[tuple[str, str]]:
        parts = [package for other in inner.get(extra, []) for package in whole(other)]
        return list(dict.fromkeys([*groups.get(extra, []), *parts]))

    order = [*FOR, *sorted(set(groups) - set(FOR) - {""})]
    return {"": whole(""), **{extra: whole(extra) for extra in order if extra in groups}}


def _extra(name: str, group: list[tuple[str, str]]) -> dict[str, Any]:
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


def _machine() -> dict[str, Any]:
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
    """Where things are kept, and whether they can be written; nothing is made here."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME", str(cache / "huggingface")) + "/hub"
    compiled = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parents[1] / "numerics"
    places = {"models (Hugging Face)": hub, "compiled loops (numba)": compiled, "runs": "attnlimit-out"}
    return {name: _folder(Path(place).expanduser()) for name, place in places.items()}


def _folder(path: Path) -> dict[str, Any]:
    there = path.absolute()
    nearest = next(one for one in (there, *there.parents) if one.exists())
    return {
        "path": str(path),
        "exists": path.is_dir(),
        "writable": nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK),
    }


def _access(folder: dict[str, Any]) -> str:
    if not folder["writable"]:
        return "cannot be written"
    return "writable" if folder["exists"] else "made when needed"


def _notes(extras: dict[str, dict[str, Any]]) -> list[str]:
    """What to do, in whole sentences."""
    if not extras:
        place = Path(__file__).parents[1]
        return [
            f"attnlimit runs from {place} but is not installed (pip install -e .): its extras are not known."
        ]
    notes = [f"To add {name}: {one['install']}" for name, one in extras.items() if one["missing"]]
    if not _version("numba"):
        notes.append("Without numba the same numbers come more slowly.")
    if not any(shutil.which(name) for name in BROWSERS):
        notes.append("No browser was found here; a report is one HTML file and opens on any other machine.")
    return notes
