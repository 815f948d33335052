"""In-context tasks: laws over prompts, each with its infinite-prompt law and its floor."""

from attnlimit.icl.tasks.base import Floor, InContextTask, Prompts, ar1
from attnlimit.icl.tasks.classification import Classification
from attnlimit.icl.tasks.denoising import MixtureDenoising
from attnlimit.icl.tasks.regression import LinearRegression

__all__ = [
    "Classification",
    "Floor",
    "InContextTask",
    "LinearRegression",
    "MixtureDenoising",
    "Prompts",
    "ar1",
]
