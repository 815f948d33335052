"""The folder for what is kept between runs and can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$ATTNLIMIT_CACHE, else attnlimit in $XDG_CACHE_HOME, else ~/.cache/attnlimit. It may not exist yet."""
    own = os.environ.get("ATTNLIMIT_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(own).expanduser() if own else Path(shared).expanduser() / "attnlimit"
