"""What can go wrong, by name. Every message says what happened, what was given, why, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

_HEAD, _TAIL = 1500, 500
"""Letters that are left of what is very long."""


def one_line(words: str) -> str:
    """The same with spaces for what breaks the line, moves a terminal's cursor or turns the writing, and without the middle of
    what is very long.

    >>> one_line("a\\nb" + "c" * 3000)[:4], len(one_line("c" * 3000))
    ('a bc', 2003)
    """
    short = words if len(words) <= _HEAD + _TAIL else f"{words[:_HEAD]} … {words[-_TAIL:]}"
    return "".join(one if one.isprintable() else " " for one in short)


class AttnlimitError(Exception):
    """Base of all errors raised on purpose by attnlimit. Its message is one line, whatever names and values it was given."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class InputError(AttnlimitError, ValueError):
    """An argument is unusable: wrong shape, dtype, device, range, or not finite."""


class CannotWrite(InputError, OSError):
    """A file cannot be written there: no such place, no right to, or a full disk."""


class RunLocked(AttnlimitError):
    """Another process writes to the run directory; the message names it."""


class TooLarge(AttnlimitError, MemoryError):
    """More memory is needed than there is."""


class LimitDoesNotExist(AttnlimitError, ArithmeticError):
    """The quantity diverges with the number of tokens, so there is no number to return."""


class NotKnown(AttnlimitError, NotImplementedError):
    """No closed form is known for this combination; the message names the numerical way."""


class HypothesisFailed(AttnlimitError, ValueError):
    """A bound was asked for a law that does not meet the bound's hypotheses."""


class RateNotResolved(AttnlimitError, ArithmeticError):
    """The data cannot tell the rate. The refusal carries what they do say: the estimated exponent, its
    interval, and the fits that were compared."""

    def __init__(
        self,
        message: str,
        estimate: float = math.nan,
        interval: tuple[float, float] = (math.nan, math.nan),
        fits: tuple[object, ...] = (),
    ) -> None:
        super().__init__(message)
        self.estimate = estimate
        self.interval = interval
        self.fits = fits


class MissingExtra(AttnlimitError, ImportError):
    """An optional part is not installed; the message is the pip line that installs it."""


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """What is imported inside comes with an extra: `with needs("Figures need matplotlib", "report"): import matplotlib`."""
    try:
        yield
    except ImportError as missing:
        raise MissingExtra(f"{what}: pip install 'attnlimit[{extra}]'.") from missing


class ModelNotSupported(AttnlimitError, NotImplementedError):
    """A model's attention cannot be seen or replaced; the message names the model and what to do."""


class StoreError(AttnlimitError, OSError):
    """A run directory cannot be written or read: full disk, read-only, damaged. What was committed stays."""


class WorkersLost(AttnlimitError):
    """The executor has gone: its workers do not start, or its scheduler does not answer. Nothing committed is lost."""
