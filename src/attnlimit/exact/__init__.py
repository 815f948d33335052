"""The finite-n error without Monte Carlo: laws, populations, kept sets, Bernoulli subsampling."""

from attnlimit.exact.curve import Curve, curve
from attnlimit.exact.error import ExactError, exact_error
from attnlimit.exact.kept import Kept

__all__ = ["Curve", "ExactError", "Kept", "curve", "exact_error"]
