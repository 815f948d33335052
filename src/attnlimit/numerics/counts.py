"""Numbers of tokens for people."""

from __future__ import annotations


def short_count(n: float | int) -> str:
    """At most four characters up to a million.

    >>> [short_count(n) for n in (7, 999, 1427, 15484, 2_500_000)]
    ['7', '999', '1.4k', '15k', '2.5M']
    """
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:.1f}{unit}" if n < 10 * size else f"{n / size:.0f}{unit}"
    return f"{n:.0f}"
