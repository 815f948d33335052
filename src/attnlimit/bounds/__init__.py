"""Bounds on how far n tokens are from infinitely many, with explicit constants and checked hypotheses.

One bound a file, a function named as the file; each holds for every n, and says under which hypotheses and how often. Published rates whose
constants are not given, such as c₁σ⁶ ln L / L^{c₂/σ²} for prompts of length L ≥ 2 [boursier2026softmax], are
exponents and no bounds, so there is no function for them here.
"""

from collections.abc import Callable

from attnlimit.bounds.averaged import averaged
from attnlimit.bounds.berry_esseen import berry_esseen
from attnlimit.bounds.empirical import empirical
from attnlimit.bounds.fixed_query import fixed_query
from attnlimit.bounds.mean_square import mean_square
from attnlimit.bounds.observed_chi2 import observed_chi2
from attnlimit.bounds.result import Bound
from attnlimit.bounds.uniform import uniform
from attnlimit.discover import members, names
from attnlimit.doors import doors

__all__ = [
    "Bound",
    "all_bounds",
    "averaged",
    "berry_esseen",
    "empirical",
    "fixed_query",
    "mean_square",
    "observed_chi2",
    "uniform",
]


def all_bounds() -> dict[str, Callable[..., Bound]]:
    """Every bound, by its name: the functions here that are named as their files."""
    return {name: bound for name in names(__name__) for bound in members(__name__, name, only=name)}


doors(__name__)
