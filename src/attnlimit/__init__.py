"""attnlimit: what attention becomes with infinitely many tokens, and how far n tokens are from it."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from attnlimit import drawing

if TYPE_CHECKING:  # the names of _HOMES, for type checkers and editors
    from attnlimit import bounds as bounds, icl as icl
    from attnlimit.attention import Head as Head, clt as clt, prefixes as prefixes, stream as stream
    from attnlimit.designs import (
        Block as Block,
        Chances as Chances,
        Coins as Coins,
        Different as Different,
        Independent as Independent,
        Kept as Kept,
        Neyman as Neyman,
        Prefix as Prefix,
        Sampling as Sampling,
        Strata as Strata,
    )
    from attnlimit.errors import (
        AttnlimitError as AttnlimitError,
        HypothesisFailed as HypothesisFailed,
        InputError as InputError,
        LimitDoesNotExist as LimitDoesNotExist,
        MissingExtra as MissingExtra,
        NotKnown as NotKnown,
        RateNotResolved as RateNotResolved,
    )
    from attnlimit.exact import (
        ErrorLaw as ErrorLaw,
        ExactError as ExactError,
        Schedule as Schedule,
        best_kappa as best_kappa,
        curve as curve,
        design_errors as design_errors,
        error_covariance as error_covariance,
        error_law as error_law,
        exact_error as exact_error,
        gaussian_maximum as gaussian_maximum,
        gradient_error as gradient_error,
        hardmax_error as hardmax_error,
        hardmax_gap as hardmax_gap,
        heavy_tails as heavy_tails,
        mean_output_error as mean_output_error,
        phase_diagram as phase_diagram,
        sample_complexity as sample_complexity,
        two_query_covariance as two_query_covariance,
    )
    from attnlimit.measures import (
        Ball as Ball,
        Box as Box,
        Empirical as Empirical,
        FromSampler as FromSampler,
        Gaussian as Gaussian,
        Laplace as Laplace,
        Measure as Measure,
        Mixture as Mixture,
        Rademacher as Rademacher,
        Sphere as Sphere,
        StudentT as StudentT,
    )
    from attnlimit.models.analyse.analyze import Reading as Reading, analyze as analyze
    from attnlimit.models.attend.sampled import sampled_attention as sampled_attention
    from attnlimit.models.budget.budgets import Budgets as Budgets
    from attnlimit.models.explain.explain import explain as explain
    from attnlimit.models.judge.compare import compare as compare
    from attnlimit.models.judge.verify import verify as verify
    from attnlimit.models.see.load import load as load
    from attnlimit.rates import (
        ErrorCurve as ErrorCurve,
        Rates as Rates,
        choose as choose,
        exponents as exponents,
        fit_log as fit_log,
        fit_power as fit_power,
        horizon as horizon,
        local_slopes as local_slopes,
        rates as rates,
    )
    from attnlimit.sampling import (
        Convergence as Convergence,
        Covariance as Covariance,
        Fresh as Fresh,
        Given as Given,
        Map as Map,
        Mean as Mean,
        Moment as Moment,
        Own as Own,
        Sup as Sup,
        measure_convergence as measure_convergence,
    )

__version__ = "0.1.0"
_HOMES = {
    "": "bounds icl",
    "attention": "Head clt prefixes stream",
    "designs": "Block Chances Coins Different Independent Kept Neyman Prefix Sampling Strata",
    "errors": (
        "AttnlimitError HypothesisFailed InputError LimitDoesNotExist MissingExtra NotKnown RateNotResolved"
    ),
    "exact": (
        "ErrorLaw ExactError Schedule best_kappa curve design_errors error_covariance error_law exact_error "
        "gaussian_maximum gradient_error hardmax_error hardmax_gap heavy_tails mean_output_error phase_diagram "
        "sample_complexity two_query_covariance"
    ),
    "measures": "Ball Box Empirical FromSampler Gaussian Laplace Measure Mixture Rademacher Sphere StudentT",
    "models.analyse.analyze": "Reading analyze",
    "models.attend.sampled": "sampled_attention",
    "models.budget.budgets": "Budgets",
    "models.explain.explain": "explain",
    "models.judge.compare": "compare",
    "models.judge.verify": "verify",
    "models.see.load": "load",
    "rates": "ErrorCurve Rates choose exponents fit_log fit_power horizon local_slopes rates",
    "sampling": "Convergence Covariance Fresh Given Map Mean Moment Own Sup measure_convergence",
}
"""Where the public names live. A module is imported when one of its names is first asked for, so `import attnlimit` costs
nothing."""
__all__ = sorted(name for names in _HOMES.values() for name in names.split())


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        homes = [home for home, names in _HOMES.items() if name in names.split()]
        if not homes and name not in _HOMES:  # folders are there too: attnlimit.exact
            raise AttributeError(f"module 'attnlimit' has no attribute {name!r}")
        home = homes[0] if homes else ""
        module = import_module(f"attnlimit.{home or name}")
        globals()[name] = getattr(module, name) if home else module
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        """An imported folder becomes an attribute of the package; `rates` stays the function."""
        own = isinstance(value, ModuleType) and name in _HOMES.get(name, "").split()
        super().__setattr__(name, getattr(value, name) if own else value)


sys.modules[__name__].__class__ = _Package
drawing.providers.append(lambda: import_module("attnlimit.report.figures").register())
