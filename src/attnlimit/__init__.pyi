"""The public names and where they live; `__init__.py` reads them here, so that each is written once."""

from attnlimit import (
    attention as attention,
    bounds as bounds,
    designs as designs,
    errors as errors,
    exact as exact,
    icl as icl,
    measures as measures,
    models as models,
    reproduce as reproduce,
    sampling as sampling,
    studies as studies,
)
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
    second_moment_error as second_moment_error,
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
from attnlimit.models.analyse.run import Run as Run
from attnlimit.models.attend.sampled import sampled_attention as sampled_attention
from attnlimit.models.budget.budgets import Budgets as Budgets
from attnlimit.models.explain.explain import explain as explain
from attnlimit.models.judge import Allowed as Allowed, Trial as Trial, compare as compare, verify as verify
from attnlimit.models.see.load import load as load
from attnlimit.models.see.text import documents as documents
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
from attnlimit.report.html import write_report as write_report
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
    output_covariance_error as output_covariance_error,
)

__version__: str
