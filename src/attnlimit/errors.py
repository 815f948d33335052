"""What can go wrong, by name. Every message says what happened, what was given, why, and what to do."""

from __future__ import annotations


class AttnlimitError(Exception):
    """Base of all errors raised on purpose by attnlimit."""


class InputError(AttnlimitError, ValueError):
    """An argument is unusable: wrong shape, dtype, device, range, or not finite."""


class LimitDoesNotExist(AttnlimitError, ArithmeticError):
    """The quantity diverges with the number of tokens, so there is no number to return."""


class NotKnown(AttnlimitError, NotImplementedError):
    """No closed form is known for this combination; the message names the numerical way."""


class HypothesisFailed(AttnlimitError, ValueError):
    """A bound was asked for a law that does not meet the bound's hypotheses."""
