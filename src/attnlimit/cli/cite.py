"""attnlimit cite: the works behind the results."""

from __future__ import annotations

import sys
from importlib.resources import files


def cite() -> None:
    """Print the BibTeX of the works that attnlimit builds on."""
    sys.stdout.write(files("attnlimit").joinpath("references.bib").read_text(encoding="utf-8"))
