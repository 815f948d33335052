"""attnlimit: what attention becomes with infinitely many tokens, and how far n tokens are from it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnlimit import bounds
from attnlimit.attention import Head, clt, prefixes, stream
from attnlimit.errors import (
    AttnlimitError,
    HypothesisFailed,
    InputError,
    LimitDoesNotExist,
    MissingExtra,
    NotKnown,
    RateNotResolved,
)
from attnlimit.exact import (
    Curve,
    ExactError,
    Kept,
    Schedule,
    best_kappa,
    curve,
    exact_error,
    gaussian_maximum,
    hardmax_error,
    hardmax_gap,
    phase_diagram,
)
from attnlimit.measures import (
    Ball,
    Box,
    Empirical,
    FromSampler,
    Gaussian,
    Laplace,
    Measure,
    Mixture,
    Rademacher,
    Sphere,
    StudentT,
)
from attnlimit.rates import Rates, choose, exponents, fit_log, fit_power, horizon, local_slopes, rates
from attnlimit.rates.complexity import sample_complexity
from attnlimit.sampling import Convergence, measure_convergence

__version__ = "0.1.0"
__all__ = [
    "AttnlimitError",
    "Ball",
    "Box",
    "Convergence",
    "Curve",
    "Empirical",
    "ExactError",
    "FromSampler",
    "Gaussian",
    "Head",
    "HypothesisFailed",
    "InputError",
    "Kept",
    "Laplace",
    "LimitDoesNotExist",
    "Measure",
    "MissingExtra",
    "Mixture",
    "NotKnown",
    "Rademacher",
    "RateNotResolved",
    "Rates",
    "Schedule",
    "Sphere",
    "StudentT",
    "best_kappa",
    "bounds",
    "choose",
    "clt",
    "curve",
    "exact_error",
    "exponents",
    "fit_log",
    "fit_power",
    "gaussian_maximum",
    "hardmax_error",
    "hardmax_gap",
    "horizon",
    "icl",
    "local_slopes",
    "measure_convergence",
    "phase_diagram",
    "prefixes",
    "rates",
    "sample_complexity",
    "stream",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """`al.icl` is imported when it is first asked for."""
        if name == "icl":
            return import_module("attnlimit.icl")
        raise AttributeError(f"module 'attnlimit' has no attribute {name!r}")
