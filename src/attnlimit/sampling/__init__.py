"""Monte Carlo where exactness ends: error curves from sampled tokens, and the policies that sample them."""

from attnlimit.sampling import policies
from attnlimit.sampling.convergence import Convergence
from attnlimit.sampling.measure import measure_convergence

__all__ = ["Convergence", "measure_convergence", "policies"]
