"""Published results and ours, each with one command: studies to run, a figure, and what it says of the claim.

A result is a module here with `RESULTS`, its studies in specs/, and its name in `WHERE`.
"""

from __future__ import annotations

from importlib import import_module

from attnlimit.errors import InputError
from attnlimit.reproduce.result import Outcome, Reproduction, Runs, Verdict
from attnlimit.reproduce.run import OUT, Interrupted, Plan, Reproduced, plan, run

__all__ = [
    "NAMES",
    "OUT",
    "Interrupted",
    "Outcome",
    "Plan",
    "Reproduced",
    "Reproduction",
    "Runs",
    "Verdict",
    "find",
    "plan",
    "run",
]

WHERE = {
    "gaussian": "moments",
    "sphere": "moments",
    "bert": "model_heads",
    "bigbird-iid": "model_heads",
    "bigbird-window": "model_heads",
    "downstream": "downstream",
    "downstream-by-horizon": "downstream",
    "token-cloud": "token_cloud",
    "icl-risk": "icl",
    "icl-trajectory": "icl",
    "gradient-concentration": "gradient_concentration",
    "sharp-rates": "sharp_rates",
    "phase-diagram": "phase_diagram",
    "uniform-constant": "constants",
    "moment-constant": "constants",
    "hardmax-log-rate": "hardmax_log_rate",
}
"""The module of each result, in the order of the papers, then ours."""
NAMES = tuple(WHERE)


def find(name: str) -> Reproduction:
    """The result of that name.

    >>> find("sharp-rates").source
    'attnlimit'
    """
    if name not in WHERE:
        raise InputError(f"There is no result {name!r} to reproduce: use all, or one of {', '.join(NAMES)}.")
    module = import_module(f"{__name__}.{WHERE[name]}")
    return next(one for one in module.RESULTS if one.name == name)
