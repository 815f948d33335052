"""The finite-n error without Monte Carlo: laws, populations under any sampling, hardmax."""

from attnlimit.doors import doors
from attnlimit.exact.complexity import Complexity, sample_complexity
from attnlimit.exact.covariance import ErrorCovariance, error_covariance
from attnlimit.exact.curve import curve
from attnlimit.exact.design_errors import DesignErrors, design_errors
from attnlimit.exact.error import ExactError, exact_error
from attnlimit.exact.error_law import ErrorLaw, error_law
from attnlimit.exact.gradient_error import GradientError, gradient_error
from attnlimit.exact.hardmax import GaussianMaximum, HardmaxError, gaussian_maximum, hardmax_error
from attnlimit.exact.heavy_tails import HeavyTails, heavy_tails
from attnlimit.exact.phase import PhaseDiagram, phase_diagram
from attnlimit.exact.second_moment import second_moment_error
from attnlimit.exact.temperature import HardmaxGap, Schedule, best_kappa, hardmax_gap
from attnlimit.exact.two_queries import (
    TwoQueries,
    limit_covariance,
    mean_output_error,
    two_query_covariance,
)

__all__ = [
    "Complexity",
    "DesignErrors",
    "ErrorCovariance",
    "ErrorLaw",
    "ExactError",
    "GaussianMaximum",
    "GradientError",
    "HardmaxError",
    "HardmaxGap",
    "HeavyTails",
    "PhaseDiagram",
    "Schedule",
    "TwoQueries",
    "best_kappa",
    "curve",
    "design_errors",
    "error_covariance",
    "error_law",
    "exact_error",
    "gaussian_maximum",
    "gradient_error",
    "hardmax_error",
    "hardmax_gap",
    "heavy_tails",
    "limit_covariance",
    "mean_output_error",
    "phase_diagram",
    "sample_complexity",
    "second_moment_error",
    "two_query_covariance",
]

doors(__name__)
