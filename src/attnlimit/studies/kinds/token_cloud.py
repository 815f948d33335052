"""The tokens of one layer as a cloud of points, and how well n of them cover it; with a picture of it by t-SNE.

For n different tokens of a cloud of N, drawn at random, the squared energy distance to the whole cloud,

    D² = 2 E‖X_n − Y‖ − E‖X_n − X_n'‖ − E‖Y − Y'‖,   has mean   m (N − n)/(n (N − 1)),   m = E‖Y − Y'‖,

with X_n, X_n' from the n tokens and Y, Y' from the cloud, with replacement: a law for any cloud whatever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from attnlimit.errors import InputError, MissingExtra
from attnlimit.studies.fields import Fields, File, Sizes
from attnlimit.studies.kind import Column
from attnlimit.studies.kinds.model_choice import ModelChoice
from attnlimit.studies.untyped import Data, untyped


class TokenCloud(Fields):
    """`points` random tokens of `passages` passages, as they leave layer `layer` (0: the embeddings), in subsamples of
    n, `draws` of them."""

    model: ModelChoice
    text: Annotated[list[File], Field(min_length=1)] | None = None
    tokens: PositiveInt = 256
    passages: PositiveInt = 8
    layer: NonNegativeInt = 3
    points: Annotated[int, Field(ge=50, le=5000)] = 1000
    n: Sizes
    draws: Annotated[int, Field(ge=5)] = 200
    perplexity: PositiveFloat = 30.0


def run(what: TokenCloud, replicates: int, seed: int) -> Data:
    """The picture, one nested subsample in it, and the coverage of all draws."""
    generator = torch.Generator().manual_seed(seed)
    states = _states(what)
    if what.points > len(states) or what.n[-1] > what.points:
        raise InputError(
            f"A cloud of {what.points} tokens and subsamples of up to {what.n[-1]} need as many tokens: there are "
            f"{len(states)}. Ask for more passages."
        )
    cloud = states[torch.randperm(len(states), generator=generator)[: what.points]].double()
    distances = torch.cdist(cloud, cloud).fill_diagonal_(0.0)
    energy, nearest, order = [], [], torch.empty(0)
    for _ in range(what.draws):
        order = torch.randperm(what.points, generator=generator)
        both = [coverage(distances, order[:n]) for n in what.n]
        energy.append([float(f"{one[0]:.6g}") for one in both])
        nearest.append([float(f"{one[1]:.6g}") for one in both])
    picture = _picture(cloud, what.perplexity, int(torch.randint(2**31, (1,), generator=generator)))
    return {
        "n": what.n,
        "mean_distance": float(distances.mean()),
        "energy": energy,
        "nearest": nearest,
        "picture": [[round(x, 2) for x in point] for point in picture.tolist()],
        "order": order[: what.n[-1]].tolist(),
    }


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
    from attnlimit.models.see.text import special_tokens, texts, token_windows
    from attnlimit.studies.kinds.model_choice import loaded

    ready = loaded(what.model.use)
    tokenizer = ready.need_tokenizer()
    files = None if what.text is None else [file.checked() for file in what.text]
    windows = token_windows(tokenizer, texts(files), what.tokens, most=what.passages)
    with torch.no_grad():
        output = ready.model(input_ids=windows.to(ready.model.device), output_hidden_states=True)
    if what.layer >= len(output.hidden_states):
        raise InputError(f"layer is {what.layer}, but {ready.name} has only {len(output.hidden_states) - 1}.")
    before, after = (len(part) for part in special_tokens(tokenizer))
    states: Tensor = output.hidden_states[what.layer][:, before : windows.shape[1] - after].cpu()
    return states.flatten(0, 1)


def _picture(cloud: Tensor, perplexity: float, seed: int) -> Tensor:
    try:
        from sklearn.manifold import TSNE
    except ImportError as missing:
        raise MissingExtra("t-SNE needs scikit-learn: pip install 'attnlimit[demo]'.") from missing
    perplexity = min(perplexity, (len(cloud) - 1) / 3)
    found = TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(cloud.numpy())
    return torch.from_numpy(found)


COLUMNS: dict[str, Column] = {"draw": "int", "n": "int", "energy": "float", "nearest": "float"}


def rows(result: Data) -> Iterator[tuple[Any, ...]]:
    for draw, (energy, nearest) in enumerate(zip(result["energy"], result["nearest"], strict=True)):
        for k, n in enumerate(result["n"]):
            yield draw, n, energy[k], nearest[k]


def summary(what: TokenCloud, results: list[Data]) -> dict[str, Any]:
    """Coverage against n with its standard error, relative to the mean distance of two tokens, and the first picture."""
    first = results[0]
    found: dict[str, Any] = {
        "model": what.model.use,
        "weights": what.model.words(),
        "layer": what.layer,
        "points": what.points,
        "draws": what.draws * len(results),
        "n": what.n,
        "picture": first["picture"],
        "order": first["order"],
    }
    for name in ("energy", "nearest"):
        parts = [torch.tensor(one[name], dtype=torch.float64) / one["mean_distance"] for one in results]
        values = torch.cat(parts)
        found[name] = values.mean(0).tolist()
        found[f"{name}_standard_error"] = (values.std(0) / len(values) ** 0.5).tolist()
    found["predicted"] = [predicted(1.0, what.points, n) for n in what.n]
    return found


KIND = untyped("token_cloud", TokenCloud, run, COLUMNS, rows, summary)
