"""In-context learning: softmax attention on finite prompts against its infinite-prompt limit."""

from attnlimit.icl.infinite import infinite_predictions, infinite_risk
from attnlimit.icl.tasks import Classification, Floor, LinearRegression, MixtureDenoising, Prompts, Task, ar1

__all__ = [
    "Classification",
    "Floor",
    "LinearRegression",
    "MixtureDenoising",
    "Prompts",
    "Task",
    "ar1",
    "infinite_predictions",
    "infinite_risk",
]
