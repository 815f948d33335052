"""Bring figures and verdicts of finished reproductions into docs/reproduction.md.

    python docs/write_reproduction.py attnlimit-out/reproduce/*/

What lies between <!-- NAME --> and <!-- end --> there is written anew.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from attnlimit.studies.kind import plain

PAGE = Path(__file__).with_name("reproduction.md")


def verdicts(record: dict[str, Any]) -> str:
    """The sentence and the table, as Markdown."""
    size = "Quick size: fewer points than the paper's. " if record["size"] == "quick" else ""
    counted = next(text for text in record["summary"] if text.startswith(("Of ", "Nothing")))
    lines = [
        f"*Verdict.* {size}{counted}",
        "",
        "| | claim | predicted | measured, 95 % |",
        "|---|---|---|---|",
    ]
    for one in record["verdicts"]:
        interval = "" if one["low"] is None else f" ({one['low']:.3g} to {one['high']:.3g})"
        cells = [one["outcome"], one["claim"], plain(one["predicted"]), plain(one["measured"]) + interval]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def write(page: str, record: dict[str, Any]) -> str:
    """The page with this result's verdicts."""
    place = re.compile(rf"(?<=<!-- {record['name']} -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
    page, count = place.subn(lambda _: verdicts(record), page)
    if count != 1:
        raise SystemExit(f"{PAGE.name} should have one place <!-- {record['name']} -->, it has {count}.")
    return page


if __name__ == "__main__":
    text = PAGE.read_text()
    for folder in map(Path, sys.argv[1:]):
        result = json.loads((folder / "verdict.json").read_text())
        text = write(text, result)
        shutil.copy(folder / "figure.png", PAGE.with_suffix("") / f"{result['name']}.png")
    PAGE.write_text(text)
