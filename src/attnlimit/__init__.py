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
from attnlimit.rates.complexity import sample_complexity

__version__ = "0.1.0"
__all__ = [
    "AttnlimitError",
    "Ball",
    "Box",
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
    "Sphere",
    "StudentT",
    "bounds",
    "clt",
    "curve",
    "exact_error",
    "prefixes",
    "sample_complexity",
    "stream",
]
