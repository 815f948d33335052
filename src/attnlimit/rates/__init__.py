"""How fast n-token attention approaches its limit: the horizon, the exponents, and fits to measured curves."""

from attnlimit.doors import doors
from attnlimit.rates.choice import Choice, choose
from attnlimit.rates.error_curve import ErrorCurve
from attnlimit.rates.exponents import Rates, exponents, rates
from attnlimit.rates.fits import LogFit, PowerFit, fit_log, fit_power
from attnlimit.rates.horizon import horizon
from attnlimit.rates.logs import local_slopes

__all__ = [
    "Choice",
    "ErrorCurve",
    "LogFit",
    "PowerFit",
    "Rates",
    "choose",
    "exponents",
    "fit_log",
    "fit_power",
    "horizon",
    "local_slopes",
    "rates",
]

doors(__name__)
