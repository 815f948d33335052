"""attnlimit: what attention becomes with infinitely many tokens, and how far n tokens are from it."""

from attnlimit.attention import Head, clt, prefixes, stream
from attnlimit.errors import AttnlimitError, HypothesisFailed, InputError, LimitDoesNotExist, NotKnown
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

__version__ = "0.1.0"
__all__ = [
    "AttnlimitError",
    "Ball",
    "Box",
    "Empirical",
    "FromSampler",
    "Gaussian",
    "Head",
    "HypothesisFailed",
    "InputError",
    "Laplace",
    "LimitDoesNotExist",
    "Measure",
    "Mixture",
    "NotKnown",
    "Rademacher",
    "Sphere",
    "StudentT",
    "clt",
    "prefixes",
    "stream",
]
