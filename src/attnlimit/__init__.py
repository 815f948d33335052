"""attnlimit: what attention becomes with infinitely many tokens, and how far n tokens are from it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnlimit import bounds, drawing
from attnlimit.attention import Head, clt, prefixes, stream
from attnlimit.designs import (
    Block,
    Chances,
    Coins,
    Different,
    Independent,
    Kept,
    Neyman,
    Prefix,
    Sampling,
    Strata,
)
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
    ExactError,
    Schedule,
    best_kappa,
    curve,
    design_errors,
    error_covariance,
    exact_error,
    gaussian_maximum,
    gradient_error,
    hardmax_error,
    hardmax_gap,
    mean_output_error,
    phase_diagram,
    sample_complexity,
    two_query_covariance,
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
from attnlimit.rates import (
    ErrorCurve,
    Rates,
    choose,
    exponents,
    fit_log,
    fit_power,
    horizon,
    local_slopes,
    rates,
)
from attnlimit.sampling import (
    Convergence,
    Covariance,
    Fresh,
    Given,
    Map,
    Mean,
    Moment,
    Own,
    Sup,
    measure_convergence,
)

if TYPE_CHECKING:
    from attnlimit.models.analyse.analyze import Reading, analyze
    from attnlimit.models.attend.sampled import sampled_attention
    from attnlimit.models.budget.budgets import Budgets
    from attnlimit.models.explain.explain import explain
    from attnlimit.models.judge.compare import compare
    from attnlimit.models.judge.verify import verify
    from attnlimit.models.see.load import load

__version__ = "0.1.0"
__all__ = [
    "AttnlimitError",
    "Ball",
    "Block",
    "Box",
    "Budgets",
    "Chances",
    "Coins",
    "Convergence",
    "Covariance",
    "Different",
    "Empirical",
    "ErrorCurve",
    "ExactError",
    "Fresh",
    "FromSampler",
    "Gaussian",
    "Given",
    "Head",
    "HypothesisFailed",
    "Independent",
    "InputError",
    "Kept",
    "Laplace",
    "LimitDoesNotExist",
    "Map",
    "Mean",
    "Measure",
    "MissingExtra",
    "Mixture",
    "Moment",
    "Neyman",
    "NotKnown",
    "Own",
    "Prefix",
    "Rademacher",
    "RateNotResolved",
    "Rates",
    "Reading",
    "Sampling",
    "Schedule",
    "Sphere",
    "Strata",
    "StudentT",
    "Sup",
    "analyze",
    "best_kappa",
    "bounds",
    "choose",
    "clt",
    "compare",
    "curve",
    "design_errors",
    "error_covariance",
    "exact_error",
    "explain",
    "exponents",
    "fit_log",
    "fit_power",
    "gaussian_maximum",
    "gradient_error",
    "hardmax_error",
    "hardmax_gap",
    "horizon",
    "icl",
    "load",
    "local_slopes",
    "mean_output_error",
    "measure_convergence",
    "phase_diagram",
    "prefixes",
    "rates",
    "sample_complexity",
    "sampled_attention",
    "stream",
    "two_query_covariance",
    "verify",
]

_LAZY = {
    "Budgets": "attnlimit.models.budget.budgets",
    "Reading": "attnlimit.models.analyse.analyze",
    "analyze": "attnlimit.models.analyse.analyze",
    "compare": "attnlimit.models.judge.compare",
    "explain": "attnlimit.models.explain.explain",
    "icl": "attnlimit.icl",
    "load": "attnlimit.models.see.load",
    "sampled_attention": "attnlimit.models.attend.sampled",
    "verify": "attnlimit.models.judge.verify",
}
"""Imported when asked for, so that theory does not wait for models."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'attnlimit' has no attribute {name!r}")
        module = import_module(_LAZY[name])
        return module if _LAZY[name] == f"attnlimit.{name}" else getattr(module, name)


drawing.providers.append(lambda: import_module("attnlimit.report.figures").register())


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
