"""python -m benchmarks [NAME ...] [--quick] [--out DIR]"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import attnlimit

HERE = Path(__file__).parent
NAMES = [module.name for module in iter_modules([str(HERE)]) if not module.name.startswith("_")]


def main() -> int:
    options = _options()
    console = Console()
    table = Table("benchmark", "figure", "value", "target", "met", box=None, header_style="bold")
    results: dict[str, Any] = {}
    out = options.out or (None if options.quick else HERE)
    for name in options.names or NAMES:
        with console.status(f"{name} …"):
            results[name] = _run(name, options.quick)
        if out is not None:
            _write(out / "results.json", results)  # at once: a later benchmark may fail
        for figure in results[name]["figures"]:
            met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[figure.get("met")]
            value = f"{figure['value']:.3g} {figure['unit']}"
            table.add_row(name, figure["name"], value, figure.get("target", ""), met)
    console.print(table)
    if out is not None:
        console.print(f"All figures are in {os.path.relpath(out / 'results.json')}")
    met = [figure["met"] for result in results.values() for figure in result["figures"] if "met" in figure]
    console.print(f"{sum(met)} of {len(met)} targets met" + (" (quick run: smaller sizes)" * options.quick))
    return 0 if options.quick or all(met) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=f"Benchmarks: {', '.join(NAMES)}."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run (all)")
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes, to see that it runs; written only with --out"
    )
    parser.add_argument("--out", type=Path, help="folder for results.json (benchmarks/)")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return options


def _run(name: str, quick: bool) -> dict[str, Any]:
    """The figures, with what they were measured on: each entry of the file stands by itself."""
    module = import_module(f"benchmarks.{name}")
    start, load = perf_counter(), os.getloadavg()[0]
    result = module.run(quick)
    return {
        "measures": (module.__doc__ or "").strip(),
        **result,
        "quick": quick,
        "seconds": round(perf_counter() - start, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "attnlimit": attnlimit.__version__,
        },
        "machine": {
            "cpus": os.cpu_count(),
            "load before": round(load, 1),
            "threads": torch.get_num_threads(),
            "architecture": platform.machine(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        },
    }


def _write(path: Path, results: dict[str, Any]) -> None:
    """Benchmarks that were not run this time keep their entries."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else {}
    kept = {name: before[name] for name in NAMES if name in before}
    merged = dict(sorted((kept | results).items()))
    path.write_text(json.dumps(merged, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
