"""The tokens of one layer as a cloud of points, and how well n of them cover it; with a picture of it by t-SNE.

For n different tokens of a cloud of N, drawn at random, the squared energy distance to the whole cloud,

    D² = 2 E‖X_n − Y‖ − E‖X_n − X_n'‖ − E‖Y − Y'‖,   has mean   m (N − n)/(n (N − 1)),   m = E‖Y − Y'‖,

with X_n, X_n' from the n tokens and Y, Y' from the cloud, with replacement: a law for any cloud whatever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from attnlimit.errors import InputError, needs
from attnlimit.models.see.text import special_tokens, token_windows
from attnlimit.studies.fields import Sizes
from attnlimit.studies.kind import Cells, Folder, Row, crossed, table
from attnlimit.studies.model_fields import OfModel, OnText, digits


class Mean(NamedTuple):
    """Over all draws, at each n."""

    value: list[float]
    standard_error: list[float]


@dataclass(frozen=True, eq=False)
class Covered(OfModel):
    """How well every draw covers its cloud, and a picture of the first one."""

    layer: int
    points: int
    n: tuple[int, ...]
    mean_distance: Float[Tensor, " draws"]
    """Of two tokens of the cloud."""
    squares: Float[Tensor, "draws n"]
    """Squared energy distance to the cloud."""
    distances: Float[Tensor, "draws n"]
    """Mean distance of a token to the nearest member."""
    picture: Float[Tensor, "points 2"]
    order: tuple[int, ...]
    """One nested subsample in the picture."""
    by_replicate = ("mean_distance", "squares", "distances")
    columns = table("draw:int n:int energy nearest")

    def rows(self) -> Cells:
        return crossed([range(len(self.squares)), self.n], self.squares, self.distances)

    @property
    def energy(self) -> Mean:
        """The squared energy distance, over the mean distance of two tokens."""
        return self._mean(self.squares)

    @property
    def nearest(self) -> Mean:
        """The distance to the nearest member, likewise."""
        return self._mean(self.distances)

    def _mean(self, values: Tensor) -> Mean:
        relative = values / self.mean_distance[:, None]
        return Mean(relative.mean(0).tolist(), (relative.std(0) / len(relative) ** 0.5).tolist())

    @property
    def predicted(self) -> list[float]:
        """Of the energy."""
        return [predicted(1.0, self.points, n) for n in self.n]

    def shown(self) -> list[Row]:
        energy, nearest = self.energy, self.nearest
        return [
            {
                "n": n,
                "energy": energy.value[k],
                "energy_standard_error": energy.standard_error[k],
                "predicted": self.predicted[k],
                "nearest": nearest.value[k],
                "nearest_standard_error": nearest.standard_error[k],
            }
            for k, n in enumerate(self.n)
        ]


def coverage(distances: Float[Tensor, "N N"], chosen: Int[Tensor, " n"]) -> tuple[float, float]:
    """Squared energy distance of some tokens to the cloud, and the mean distance of a token to the nearest of them."""
    rows = distances[chosen]
    energy = 2 * rows.mean() - rows[:, chosen].mean() - distances.mean()
    return float(energy), float(rows.amin(0).mean())


def predicted(mean_distance: float, points: int, n: int) -> float:
    """The mean of the squared energy distance.

    >>> predicted(2.0, 100, 100), round(predicted(2.0, 10**9, 100), 6)
    (0.0, 0.02)
    """
    return mean_distance * (points - n) / (n * (points - 1))


def _states(what: TokenCloud) -> Float[Tensor, "tokens d"]:
    ready = what.loaded()
    tokenizer = ready.need_tokenizer()
    windows = token_windows(tokenizer, what.documents(), what.tokens, most=what.passages)
    with torch.no_grad():
        output = ready.model(input_ids=windows.to(ready.device), output_hidden_states=True)
    if what.layer >= len(output.hidden_states):
        raise InputError(f"layer is {what.layer}, but {ready.name} has only {len(output.hidden_states) - 1}.")
    before, after = (len(part) for part in special_tokens(tokenizer))
    states: Tensor = output.hidden_states[what.layer][:, before : windows.shape[1] - after].cpu()
    return states.flatten(0, 1)


def _picture(cloud: Tensor, perplexity: float, seed: int) -> Tensor:
    with needs("t-SNE needs scikit-learn", "demo"):
        from sklearn.manifold import TSNE
    perplexity = min(perplexity, (len(cloud) - 1) / 3)
    found = TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(cloud.numpy())
    return torch.from_numpy(found)


class TokenCloud(OnText):
    """`points` random tokens of `passages` passages, as they leave layer `layer` (0: the embeddings), in subsamples of
    n, `draws` of them."""

    title = "Tokens of a layer, and how well n of them cover it"
    result = Covered

    tokens: PositiveInt = 256
    passages: PositiveInt = 8
    layer: NonNegativeInt = 3
    points: Annotated[int, Field(ge=50, le=5000)] = 1000
    n: Sizes
    draws: Annotated[int, Field(ge=5)] = 200
    perplexity: PositiveFloat = 30.0

    def run(self, replicates: int, seed: int, place: Folder = None) -> Covered:
        """The picture, one nested subsample in it, and the coverage of all draws."""
        generator = torch.Generator().manual_seed(seed)
        states = _states(self)
        if self.points > len(states) or self.n[-1] > self.points:
            raise InputError(
                f"A cloud of {self.points} tokens and subsamples of up to {self.n[-1]} need as many tokens: there are "
                f"{len(states)}. Ask for more passages."
            )
        cloud = states[torch.randperm(len(states), generator=generator)[: self.points]].double()
        distances = torch.cdist(cloud, cloud).fill_diagonal_(0.0)
        orders = [torch.randperm(self.points, generator=generator) for _ in range(self.draws)]
        found = torch.tensor(
            [[coverage(distances, order[:n]) for n in self.n] for order in orders], dtype=torch.float64
        )
        picture = _picture(
            cloud, self.perplexity, int(torch.randint(2**62, (1,), generator=generator)) % 2**31
        )
        return Covered(
            model=self.model.use,
            weights=self.model.words(),
            layer=self.layer,
            points=self.points,
            n=tuple(self.n),
            mean_distance=distances.mean().expand(self.draws),
            squares=digits(found[..., 0], 6),
            distances=digits(found[..., 1], 6),
            picture=picture.double().round(decimals=2),
            order=tuple(orders[-1][: self.n[-1]].tolist()),
        )
