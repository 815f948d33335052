"""Monte Carlo where exactness ends: error curves from sampled tokens."""

from attnlimit.doors import doors
from attnlimit.sampling.convergence import Convergence, measure_convergence
from attnlimit.sampling.map_error import Map
from attnlimit.sampling.moments import Covariance, Mean, Moment
from attnlimit.sampling.output_covariance import output_covariance_error
from attnlimit.sampling.statistic import Fresh, Given, Own, Statistic
from attnlimit.sampling.supremum import Sup

__all__ = [
    "Convergence",
    "Covariance",
    "Fresh",
    "Given",
    "Map",
    "Mean",
    "Moment",
    "Own",
    "Statistic",
    "Sup",
    "measure_convergence",
    "output_covariance_error",
]

doors(__name__)
