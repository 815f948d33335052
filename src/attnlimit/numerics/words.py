"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A count with its noun, in the plural unless it is one.

    >>> counted(1, "passage"), counted(1024, "passage"), counted(2, "process")
    ('1 passage', '1,024 passages', '2 processes')
    """
    return f"{number:,} {what if number == 1 else what + ('es' if what.endswith('s') else 's')}"
