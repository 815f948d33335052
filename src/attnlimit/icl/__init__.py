"""In-context learning: softmax attention on finite prompts against its infinite-prompt limit."""

from attnlimit.doors import doors
from attnlimit.icl.concentration import Concentration, Loss, Trials, concentration
from attnlimit.icl.flow import Diverged, WeightPath, descend, flow
from attnlimit.icl.infinite import Block, Weights, balanced, infinite_predictions, infinite_risk
from attnlimit.icl.methods import Evaluation, Optimizer, Saving, Start
from attnlimit.icl.solutions import (
    FiniteRisk,
    StationaryPoint,
    endpoint,
    finite_risk,
    long_prompt_constant,
    stationary_points,
    tuned,
)
from attnlimit.icl.tasks import (
    Classification,
    Floor,
    InContextTask,
    LinearRegression,
    MixtureDenoising,
    Prompts,
    ar1,
)
from attnlimit.icl.train import train
from attnlimit.icl.training import Training
from attnlimit.icl.transfer import TrainedCheck, Transfer, transfer

__all__ = [
    "Block",
    "Classification",
    "Concentration",
    "Diverged",
    "Evaluation",
    "FiniteRisk",
    "Floor",
    "InContextTask",
    "LinearRegression",
    "Loss",
    "MixtureDenoising",
    "Optimizer",
    "Prompts",
    "Saving",
    "Start",
    "StationaryPoint",
    "TrainedCheck",
    "Training",
    "Transfer",
    "Trials",
    "WeightPath",
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

doors(__name__)
