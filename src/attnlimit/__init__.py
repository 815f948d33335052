"""attnlimit: what attention becomes with infinitely many tokens, and how far n tokens are from it."""

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
from attnlimit.exact import ExactError, Kept, curve, exact_error
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
    "Sphere",
    "StudentT",
    "bounds",
    "choose",
    "clt",
    "curve",
    "exact_error",
    "exponents",
    "fit_log",
    "fit_power",
    "horizon",
    "local_slopes",
    "measure_convergence",
    "prefixes",
    "rates",
    "sample_complexity",
    "stream",
]
