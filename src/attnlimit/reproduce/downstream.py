"""Published: a model with n random keys in every layer works better the more keys, and worse at large horizons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from attnlimit.drawing import Figure
from attnlimit.models.judge.downstream import DownstreamCurve
from attnlimit.models.judge.intervals import bounds, crossed_means
from attnlimit.models.judge.tasks import TaskResult
from attnlimit.numerics.ranks import RESAMPLES, rank_correlation
from attnlimit.report.figures.downstream import changes_figure
from attnlimit.report.figures.downstream import thirds_figure as draw_thirds
from attnlimit.reproduce.result import Points, Reproduction, Verdict, results, without_weights
from attnlimit.studies.kind import Row
from attnlimit.studies.kinds.downstream import Thinned
from attnlimit.studies.model_fields import OfModel

Sizes = Sequence[Thinned]
"""One model with few keys to many."""
UNITS = {"change": "relative change of the output", "divergence": "KL to the full model, nats"}


def by_model(points: Points) -> dict[str, list[Thinned]]:
    """What was found of each model, from few keys to many."""
    found: dict[str, list[Thinned]] = {}
    for one in sorted(results(points, Thinned), key=lambda one: one.keys):
        found.setdefault(one.model, []).append(one)
    return found


def curve(sizes: Sizes, what: Literal["sampled", "change", "divergence"] = "sampled") -> DownstreamCurve:
    """The task's metric, or one of the changes, at every size, seed and text; thirds by the texts' horizon."""
    first, cells = sizes[0], torch.stack([getattr(one, what) for one in sizes])
    task = what == "sampled"
    full = first.full if task else torch.zeros_like(first.full)
    found = DownstreamCurve(
        model=first.model,
        full=TaskResult(first.metric if task else UNITS[what], "", full),
        sampled=tuple(one.keys for one in sizes),
        keys=tuple(float(one.attended.mean()) for one in sizes),
        share=tuple(float(one.share.mean()) for one in sizes),
        per_example=cells,
        seeds=tuple(range(cells.shape[1])),
        level=0.95,
    )
    return found.by_horizon(first.horizons) if len(first.horizons) >= 3 else found


def words(model: str) -> str:
    return {"packaged-bert": "packaged BERT", "random-classifier": "classifier, random weights"}.get(
        model, model
    )


def figure(points: Points) -> Figure:
    models = by_model(points)
    first = next(iter(models.values()))
    changes = {words(model): curve(sizes, "change") for model, sizes in models.items()}
    changes |= {
        f"{words(model)}: KL (nats)": curve(sizes, "divergence")
        for model, sizes in models.items()
        if sizes[0].divergence is not None
    }
    tasks = {f"{words(model)}: {sizes[0].metric}": curve(sizes) for model, sizes in models.items()}
    layers = {one.keys: one.layers.numpy() for one in first}
    return changes_figure(layers, changes, tasks, " ".join(OfModel.words(points)))


def thirds_figure(points: Points) -> Figure:
    (sizes,) = by_model(points).values()
    return draw_thirds(curve(sizes, "change"), curve(sizes), note=" ".join(OfModel.words(points)))


def verdicts(points: Points) -> list[Verdict]:
    found = []
    for model, sizes in by_model(points).items():
        about = [claim(sizes, words(model)) for claim in (_change_falls, _task_rises, _comes_back)]
        found += without_weights(about) if sizes[0].random else about
    return found


def _resampled(cells: Tensor) -> Tensor:
    """(sizes, seeds, examples) → (resamples, sizes), seeds and examples drawn together."""
    return crossed_means(cells.permute(1, 2, 0), torch.Generator().manual_seed(0), RESAMPLES)


def _ends(values: Tensor) -> tuple[float, float]:
    low, high = bounds(values, 0.95)
    return float(low), float(high)


def _change_falls(sizes: Sizes, who: str) -> Verdict:
    """The exponent of the outputs' rms change in the number of keys, between the least and the most."""
    squares = curve(sizes, "change").per_example.square()
    log_n = float(np.log(sizes[-1].keys / sizes[0].keys))

    def exponent(means: Tensor) -> Tensor:
        return (means[..., 0] / means[..., -1]).log() / (2 * log_n)

    value = float(exponent(squares.mean((1, 2))))
    claim = f"{who}: outputs change less with more keys: exponent of the rms change is above 0"
    return Verdict.at_least(claim, 0.0, value, _ends(exponent(_resampled(squares))))


def _task_rises(sizes: Sizes, who: str) -> Verdict:
    """Gain of the task's metric from the least keys to the most."""
    cells = curve(sizes).per_example
    gain = cells[-1].mean() - cells[0].mean()
    resampled = _resampled(cells)
    first, last = sizes[0].keys, sizes[-1].keys
    claim = f"{who}: {sizes[0].metric} rises with the keys: gain from {first} to {last} is above 0"
    return Verdict.at_least(claim, 0.0, float(gain), _ends(resampled[:, -1] - resampled[:, 0]))


def _comes_back(sizes: Sizes, who: str) -> Verdict:
    """With most keys the metric is that of the full model."""
    cells = curve(sizes).per_example[-1:]
    full = sizes[0].full
    both = torch.cat([cells, full.expand_as(cells)])
    resampled = _resampled(both)
    value = float(full.mean())
    low, high = _ends(resampled[:, 0] - resampled[:, 1])
    share = float(sizes[-1].share.mean())
    claim = f"{who}: with {share:.0%} of the keys {sizes[0].metric} is that of all keys"
    return Verdict.equals(claim, value, float(cells.mean()), (value + low, value + high), resolution=0.2)


def thirds_verdicts(points: Points) -> list[Verdict]:
    (sizes,) = by_model(points).values()
    return [_grows_with_horizon(sizes), _loses_more(sizes)]


def _grows_with_horizon(sizes: Sizes) -> Verdict:
    """Rank correlation over texts of horizon and change of output, the latter averaged over sizes and seeds."""
    change = curve(sizes, "change").per_example.log().mean((0, 1))
    value, interval = rank_correlation(sizes[0].horizons.tolist(), change.tolist())
    claim = "outputs change more in texts of larger horizon: rank correlation over texts is above 0"
    return Verdict.at_least(claim, 0.0, value, interval)


def _loses_more(sizes: Sizes) -> Verdict:
    """Loss of the metric in the third with the highest horizons less that in the lowest, mean over sizes."""
    found = curve(sizes)
    if found.third is None:
        raise ValueError("thirds need at least three texts")
    lost = sizes[0].full - found.per_example
    parts = [lost[:, :, found.third == place] for place in (2, 0)]
    resampled = [_resampled(part).mean(1) for part in parts]
    value = float(parts[0].mean() - parts[1].mean())
    claim = f"{sizes[0].metric} loses more in texts of large horizon: loss of the high third minus the low one is above 0"
    return Verdict.at_least(claim, 0.0, value, _ends(resampled[0] - resampled[1]))


def thirds_said(points: Points) -> list[str]:
    found = torch.cat([one.horizons for one in results(points, Thinned)])
    ends = f"{float(found.min()):.3g} and {float(found.max()):.3g}"
    return [*OfModel.words(points), f"Horizons of the texts lie between {ends}."]


def table(points: Points) -> list[Row]:
    """One row for every model, size, seed and text."""
    return [
        {
            "model": one.model,
            "keys": one.keys,
            "share": float(one.share.mean()),
            "metric": one.metric,
            **dict(zip(one.columns, row, strict=True)),
        }
        for one in results(points, Thinned)
        for row in one.rows()
    ]


NOTES = (
    "The encoder's task is to find the other half of the same article among all halves. A classifier is held to labels "
    "where texts have them, else to its own answers with all keys.",
    "Keys are drawn anew in every layer, the same for all queries of a text, and stand for all keys that are not drawn.",
)
CLASSIFIER = (
    "To run a fine-tuned classifier, put its folder, named long-document-classifier, where the command is run, with "
    'labelled texts in its texts.jsonl ("text" and "label" a line).',
)
RESULTS = (
    Reproduction(
        name="downstream",
        title="A model with n random keys in every layer: layers, outputs and task",
        claim="With n random keys per layer, errors of layers and outputs fall with n, and the task's accuracy comes back.",
        source="bohbot2026token",
        figure=figure,
        verdicts=verdicts,
        table=table,
        notes=NOTES + CLASSIFIER,
        more=OfModel.words,
    ),
    Reproduction(
        name="downstream-by-horizon",
        title="A model with n random keys in every layer, by thirds of the texts' horizon",
        claim="Texts of larger horizon need more keys: their outputs change more and their accuracy suffers more.",
        source="bohbot2026token",
        figure=thirds_figure,
        verdicts=thirds_verdicts,
        table=table,
        notes=(*NOTES, "A text's horizon is the mean over layers and heads, from its own tokens."),
        more=thirds_said,
    ),
)
