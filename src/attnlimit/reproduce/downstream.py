"""Published: a model with n random keys in every layer works better the more keys, and worse at large horizons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnlimit.models.judge.downstream import DownstreamCurve
from attnlimit.models.judge.intervals import bounds, crossed_means
from attnlimit.models.judge.tasks import TaskResult
from attnlimit.reproduce.compare import at_least, equals
from attnlimit.reproduce.heads import RESAMPLES, rank_correlation, weights, without_weights
from attnlimit.reproduce.result import Reproduction, Runs, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL, THIRDS = "downstream", "downstream-by-horizon"
Points = Sequence[dict[str, Any]]
UNITS = {"change": "relative change of the output", "divergence": "KL to the full model, nats"}


def by_model(runs: Runs, spec: str) -> dict[str, list[dict[str, Any]]]:
    """The points of each model, from few keys to many."""
    found: dict[str, list[dict[str, Any]]] = {}
    for point in sorted(runs[spec]["points"], key=lambda point: int(point["keys"])):
        found.setdefault(point["model"], []).append(point)
    return found


def curve(points: Points, what: str | None = None) -> DownstreamCurve:
    """The task's metric, or one of the changes, at every size, seed and text; thirds by the texts' horizon."""
    first = points[0]
    cells = [point["sampled"] if what is None else point["changes"][what] for point in points]
    per_example = torch.tensor(cells, dtype=torch.float64)
    full = (
        torch.tensor(first["full"], dtype=torch.float64)
        if what is None
        else torch.zeros(per_example.shape[2])
    )
    name = first["metric"] if what is None else UNITS[what]
    rank = torch.tensor(first["horizons"]).argsort(stable=True).argsort(stable=True)
    return DownstreamCurve(
        first["model"],
        TaskResult(name, "", full.double()),
        tuple(point["keys"] for point in points),
        tuple(point["attended"] for point in points),
        tuple(point["share"] for point in points),
        per_example,
        tuple(range(per_example.shape[1])),
        0.95,
        3 * rank // len(rank) if len(rank) >= 3 else None,
    )


def words(model: str) -> str:
    return {"packaged-bert": "packaged BERT", "random-classifier": "classifier, random weights"}.get(
        model, model
    )


def figure(runs: Runs) -> Figure:
    from attnlimit.report.figures.downstream_changes import changes_figure

    models = by_model(runs, ALL)
    first = next(iter(models.values()))
    layers = {point["keys"]: point["layers"] for point in first}
    changes = {words(model): curve(points, "change") for model, points in models.items()}
    changes |= {
        f"{words(model)}: KL (nats)": curve(points, "divergence")
        for model, points in models.items()
        if "divergence" in points[0]["changes"]
    }
    tasks = {f"{words(model)}: {points[0]['metric']}": curve(points) for model, points in models.items()}
    return changes_figure(layers, changes, tasks, " ".join(weights(runs)))


def thirds_figure(runs: Runs) -> Figure:
    from attnlimit.report.figures.downstream_changes import thirds_figure as draw

    (points,) = by_model(runs, THIRDS).values()
    return draw(curve(points, "change"), curve(points), " ".join(weights(runs)))


def verdicts(runs: Runs) -> list[Verdict]:
    found = []
    for model, points in by_model(runs, ALL).items():
        about = [
            _change_falls(points, words(model)),
            _task_rises(points, words(model)),
            _comes_back(points, words(model)),
        ]
        found += without_weights(about) if model.startswith("random") else about
    return found


def _resampled(cells: Tensor) -> Tensor:
    """(sizes, seeds, examples) → (resamples, sizes), seeds and examples drawn together."""
    return crossed_means(cells.permute(1, 2, 0), torch.Generator().manual_seed(0), RESAMPLES)


def _ends(values: Tensor) -> tuple[float, float]:
    low, high = bounds(values, 0.95)
    return float(low), float(high)


def _change_falls(points: Points, who: str) -> Verdict:
    """The exponent of the outputs' rms change in the number of keys, between the least and the most."""
    squares = curve(points, "change").per_example.square()
    log_n = float(np.log(points[-1]["keys"] / points[0]["keys"]))

    def exponent(means: Tensor) -> Tensor:
        return (means[..., 0] / means[..., -1]).log() / (2 * log_n)

    value = float(exponent(squares.mean((1, 2))))
    claim = f"{who}: outputs change less with more keys: exponent of the rms change is above 0"
    return at_least(claim, 0.0, value, _ends(exponent(_resampled(squares))))


def _task_rises(points: Points, who: str) -> Verdict:
    """Gain of the task's metric from the least keys to the most."""
    cells = curve(points).per_example
    gain = cells[-1].mean() - cells[0].mean()
    resampled = _resampled(cells)
    first, last = points[0]["keys"], points[-1]["keys"]
    claim = f"{who}: {points[0]['metric']} rises with the keys: gain from {first} to {last} is above 0"
    return at_least(claim, 0.0, float(gain), _ends(resampled[:, -1] - resampled[:, 0]))


def _comes_back(points: Points, who: str) -> Verdict:
    """With most keys the metric is that of the full model."""
    cells = curve(points).per_example[-1:]
    full = torch.tensor(points[0]["full"], dtype=torch.float64)
    both = torch.cat([cells, full.expand_as(cells)])
    resampled = _resampled(both)
    value = float(full.mean())
    low, high = _ends(resampled[:, 0] - resampled[:, 1])
    share = points[-1]["share"]
    claim = f"{who}: with {share:.0%} of the keys {points[0]['metric']} is that of all keys"
    return equals(claim, value, float(cells.mean()), (value + low, value + high), resolution=0.2)


def thirds_verdicts(runs: Runs) -> list[Verdict]:
    (points,) = by_model(runs, THIRDS).values()
    return [_grows_with_horizon(points), _loses_more(points)]


def _grows_with_horizon(points: Points) -> Verdict:
    """Rank correlation over texts of horizon and change of output, the latter averaged over sizes and seeds."""
    change = curve(points, "change").per_example.log().mean((0, 1))
    value, interval = rank_correlation(points[0]["horizons"], change.tolist())
    claim = "outputs change more in texts of larger horizon: rank correlation over texts is above 0"
    return at_least(claim, 0.0, value, interval)


def _loses_more(points: Points) -> Verdict:
    """Loss of the metric in the third with the highest horizons less that in the lowest, mean over sizes."""
    found = curve(points)
    if found.third is None:
        raise ValueError("thirds need at least three texts")
    lost = torch.tensor(points[0]["full"], dtype=torch.float64) - found.per_example
    parts = [lost[:, :, found.third == place] for place in (2, 0)]
    resampled = [_resampled(part).mean(1) for part in parts]
    value = float(parts[0].mean() - parts[1].mean())
    claim = f"{points[0]['metric']} loses more in texts of large horizon: loss of the high third minus the low one is above 0"
    return at_least(claim, 0.0, value, _ends(resampled[0] - resampled[1]))


def thirds_said(runs: Runs) -> list[str]:
    found = [horizon for point in runs[THIRDS]["points"] for horizon in point["horizons"]]
    return [*weights(runs), f"Horizons of the texts lie between {min(found):.3g} and {max(found):.3g}."]


def table(runs: Runs) -> list[dict[str, Any]]:
    """One row for every model, size, seed and text."""
    rows = []
    for one in runs.values():
        for point in one["points"]:
            facts = {name: point[name] for name in ("model", "keys", "attended", "share", "metric")}
            for seed, sampled in enumerate(point["sampled"]):
                for k, value in enumerate(sampled):
                    changed = {name: cells[seed][k] for name, cells in point["changes"].items()}
                    text = {"text": k, "horizon": point["horizons"][k], "full": point["full"][k]}
                    rows.append({**facts, "seed": seed, **text, "sampled": value, **changed})
    return rows


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
        name=ALL,
        title="A model with n random keys in every layer: layers, outputs and task",
        claim="With n random keys per layer, errors of layers and outputs fall with n, and the task's accuracy comes back.",
        source="bohbot2026token",
        figure=figure,
        verdicts=verdicts,
        specs=(ALL,),
        table=table,
        notes=NOTES + CLASSIFIER,
        said=weights,
    ),
    Reproduction(
        name=THIRDS,
        title="A model with n random keys in every layer, by thirds of the texts' horizon",
        claim="Texts of larger horizon need more keys: their outputs change more and their accuracy suffers more.",
        source="bohbot2026token",
        figure=thirds_figure,
        verdicts=thirds_verdicts,
        specs=(THIRDS,),
        table=table,
        notes=(*NOTES, "A text's horizon is the mean over layers and heads, from its own tokens."),
        said=thirds_said,
    ),
)
