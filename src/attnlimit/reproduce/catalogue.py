"""All results that can be reproduced."""

from __future__ import annotations

from functools import cache

from attnlimit import discover
from attnlimit.errors import InputError
from attnlimit.reproduce.result import Reproduction

ORDER = (
    "gaussian",
    "sphere",
    "bert",
    "bigbird-iid",
    "bigbird-window",
    "downstream",
    "downstream-by-horizon",
    "token-cloud",
    "icl-risk",
    "icl-trajectory",
    "gradient-concentration",
    "sharp-rates",
    "phase-diagram",
    "uniform-constant",
    "moment-constant",
    "hardmax-log-rate",
)
"""In which they are listed: that of the papers, then ours, then any others."""


@cache
def _results() -> dict[str, Reproduction]:
    found = {one.name: one for some in discover.members("attnlimit.reproduce", "RESULTS") for one in some}
    listed = [name for name in ORDER if name in found]
    return {name: found[name] for name in (*listed, *sorted(set(found) - set(listed)))}


def names() -> tuple[str, ...]:
    """The names of all results."""
    return tuple(_results())


def find(name: str) -> Reproduction:
    """The result of that name.

    >>> find("sharp-rates").source
    'attnlimit'
    """
    if name not in _results():
        raise InputError(
            f"There is no result {name!r} to reproduce: use all, or one of {', '.join(names())}."
        )
    return _results()[name]
