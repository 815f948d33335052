"""In-context learning: softmax attention on finite prompts against its infinite-prompt limit."""

from attnlimit.icl.concentration import concentration
from attnlimit.icl.concentration_result import Concentration
from attnlimit.icl.descent import Diverged, descend
from attnlimit.icl.finite import FiniteRisk, finite_risk
from attnlimit.icl.flow import flow
from attnlimit.icl.infinite import infinite_predictions, infinite_risk
from attnlimit.icl.long_prompts import long_prompt_constant
from attnlimit.icl.path import Path
from attnlimit.icl.stationary import StationaryPoint, endpoint, stationary_points
from attnlimit.icl.tasks import Classification, Floor, LinearRegression, MixtureDenoising, Prompts, Task, ar1
from attnlimit.icl.train import train
from attnlimit.icl.training import Training
from attnlimit.icl.transfer import Transfer, transfer
from attnlimit.icl.tuning import tuned
from attnlimit.icl.weights import Block, Weights, balanced

__all__ = [
    "Block",
    "Classification",
    "Concentration",
    "Diverged",
    "FiniteRisk",
    "Floor",
    "LinearRegression",
    "MixtureDenoising",
    "Path",
    "Prompts",
    "StationaryPoint",
    "Task",
    "Training",
    "Transfer",
    "Weights",
    "ar1",
    "balanced",
    "concentration",
    "descend",
    "endpoint",
    "finite_risk",
    "flow",
    "infinite_predictions",
    "infinite_risk",
    "long_prompt_constant",
    "stationary_points",
    "train",
    "transfer",
    "tuned",
]
