"""What can go wrong with a run, apart from bad input."""

from __future__ import annotations

from attnlimit.errors import AttnlimitError


class StoreError(AttnlimitError, OSError):
    """A run directory cannot be written or read: full disk, read-only, damaged. What was committed stays."""


class WorkersLost(AttnlimitError):
    """The executor has gone: its workers do not start, or its scheduler does not answer. Nothing committed is lost."""
