"""How far a long piece of work is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], object]
"""Called with (parts done, parts in all)."""


def unheard(done: int, total: int) -> None:
    """For work that nobody waits for."""


class Steps:
    """One progress over several parts of about equal length."""

    def __init__(self, progress: Progress | None, parts: int) -> None:
        self.progress, self.parts, self.part = progress or unheard, parts, -1

    def next(self) -> Progress:
        self.part += 1
        before = 100 * self.part

        def tell(done: int, total: int) -> None:
            self.progress(before + 100 * done // total, 100 * self.parts)

        return tell

    def skip(self, parts: int) -> None:
        """Count parts as done: at once, or that there was no need for."""
        for _ in range(parts):
            self.next()(1, 1)
