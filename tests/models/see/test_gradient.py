"""Gradients of a model's answer: against finite differences, and against the Fisher matrix by all labels."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import normalize

from attnlimit.errors import ModelNotSupported
from attnlimit.models.see import gradient
from attnlimit.models.see.gradient import (
    CHANGE,
    EVEN,
    NATS,
    answer_error,
    answer_gradients,
    answer_of,
    drawn_by_size,
    model_answer,
    per_query,
    spread_rows,
    unit,
)
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded, decoder_inputs
from tests.versions import need_t5

SMALL = {
    "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.2,
}  # fmt: skip
T5 = {"vocab_size": 20, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "causal-lm": ("LlamaConfig", "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "masked-lm": ("BertConfig", "BertForMaskedLM", SMALL),
    "classifier": ("BertConfig", "BertForSequenceClassification", {**SMALL, "num_labels": 3}),
    "encoder": ("BertConfig", "BertModel", SMALL),
    "seq2seq": ("T5Config", "T5ForConditionalGeneration", {**T5, "decoder_start_token_id": 0}),
}
LENGTH = 12


def tiny(kind: str) -> Loaded:
    if kind == "seq2seq":
        need_t5()
    config, model, settings = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = getattr(transformers, model)(getattr(transformers, config)(**settings))
    return Loaded(built.double().eval().requires_grad_(False), None, "tiny", kind)


def text(length: int = LENGTH) -> Tensor:
    return torch.randint(3, 20, (1, length), generator=torch.Generator().manual_seed(1))


def answer(loaded: Loaded, ids: Tensor, change: Any = None) -> Tensor:
    """Log-probabilities, or the embedding, with `change` (layer, query, head, vector) added to one head's output."""

    def handle(call: Any) -> Tensor:
        out = call.output().clone()
        if change is not None and call.layer == change[0]:
            out[0, change[1], change[2]] += change[3].to(out)
        return out

    with torch.no_grad(), observe(loaded.model, handle):
        found = loaded.model(input_ids=ids, **decoder_inputs(loaded, ids))
    if loaded.kind == "encoder":
        return normalize(found.last_hidden_state[0].mean(0), dim=0)
    return found.logits.flatten(0, -2).log_softmax(-1)


def targets(full: Tensor, kind: str, draws: int, generator: torch.Generator) -> list[Any]:
    """The same labels or signs again, as functions of an answer."""
    found: list[Any] = []
    for _ in range(draws):
        if kind == "encoder":
            signs = torch.randint(2, full.shape, generator=generator).to(full) * 2 - 1
            found.append(lambda now, signs=signs: (signs * now).sum())
        else:
            place = torch.rand(len(full), 1, generator=generator, dtype=torch.float64)
            labels = gradient._label(full.float().exp(), place)
            found.append(lambda now, labels=labels: now.gather(1, labels).sum())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_against_finite_differences(kind):
    loaded, ids = tiny(kind), text()
    rows = torch.tensor([0, 5, LENGTH - 1])
    found = answer_gradients(loaded, ids, rows, 2, torch.Generator().manual_seed(4))
    assert list(found) == list(range(6 if kind == "seq2seq" else 2))
    goals = targets(answer(loaded, ids), kind, 2, torch.Generator().manual_seed(4))
    g = torch.Generator().manual_seed(5)
    far = kind == "seq2seq"  # norms round to float32, and T5 is far from linear
    step, near = (3e-4, 0.01) if far else (3e-3, 0.004)
    for layer, given in found.items():
        assert given.shape == (2, 3, 4, 8)
        scale = float(given.abs().max())
        assert scale > 0
        for place, head in ((0, 1), (1, 2), (2, 3)):
            direction = torch.randn(8, generator=g, dtype=torch.float64)
            up, down = (
                answer(loaded, ids, (layer, int(rows[place]), head, sign * step * direction))
                for sign in (1, -1)
            )
            for draw, goal in enumerate(goals):
                slope = float(goal(up) - goal(down)) / (2 * step)
                wanted = float(given[draw, place, head].double() @ direction)
                assert slope == pytest.approx(wanted, rel=near, abs=near / 2 * scale)


@pytest.mark.parametrize("kind", ["causal-lm", "encoder"])
def test_the_mean_over_draws_is_what_the_answer_loses(kind):
    """½ E(gᵀδ)² over 2,000 draws is the KL of a small change, or E(gᵀδ)² the squared change: 5 standard errors."""
    loaded, ids = tiny(kind), text()
    direction = torch.randn(8, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    direction *= 1e-3
    given = answer_gradients(loaded, ids, torch.tensor([4]), 2000, torch.Generator().manual_seed(7))
    full, now = answer(loaded, ids), answer(loaded, ids, (0, 4, 2, direction))
    squares = (given[0][:, 0, 2].double() @ direction).square()
    if kind == "encoder":
        lost = float((now - full).square().sum())
    else:
        lost = float((full.exp() * (full - now)).sum())
        squares = squares / 2
    error = float(squares.std() / len(squares) ** 0.5)
    assert error < 0.05 * lost
    assert float(squares.mean()) == pytest.approx(lost, abs=5 * error)
    assert float(squares.mean()) * 1.5 > lost + 5 * error  # a wrong factor would be seen


def test_the_same_generator_gives_the_same():
    loaded, rows = tiny("causal-lm"), torch.arange(LENGTH)
    one, again, other = (
        answer_gradients(loaded, text(), rows, 1, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])


def test_nothing_of_a_causal_model_depends_on_what_comes_later():
    """The last query of the last layer changes the last token's answer alone, and no gradient is left behind."""
    loaded = tiny("causal-lm")
    answer_gradients(loaded, text(), torch.tensor([3]), 1, torch.Generator().manual_seed(0))
    assert all(one.grad is None for one in loaded.model.parameters())
    direction = torch.ones(8, dtype=torch.float64)
    full, now = (answer(loaded, text(), change) for change in (None, (1, LENGTH - 1, 0, direction)))
    assert torch.equal(full[:-1], now[:-1])


def test_a_layer_that_is_called_twice_is_refused_by_name():
    loaded = tiny("encoder")
    layers = loaded.model.encoder.layer
    layers[1] = layers[0]
    with pytest.raises(ModelNotSupported, match=r"tiny calls .*layer\.0.* more than once .*--answer off"):
        answer_gradients(loaded, text(), torch.tensor([0]), 1, torch.Generator())


@pytest.mark.parametrize(
    "problem", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory: 8 GB")]
)
def test_too_little_memory(problem, monkeypatch):
    def fail(*_: Any) -> Tensor:
        raise problem

    monkeypatch.setattr(gradient, "_run", fail)
    loaded = tiny("encoder")
    with pytest.raises(
        ModelNotSupported, match=r"tiny over 12 tokens does not fit .*\(--tokens\), a smaller"
    ):
        answer_gradients(loaded, text(), torch.tensor([0]), 1, torch.Generator())


def test_other_problems_are_passed_on(monkeypatch):
    def fail(*_: Any) -> Tensor:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(gradient, "_run", fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        answer_gradients(tiny("encoder"), text(), torch.tensor([0]), 1, torch.Generator())


@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_their_errors(kind):
    """Against the same in plain terms, and nothing for the same answer."""
    loaded, ids = tiny(kind), text(200 if kind == "seq2seq" else 60)  # T5's positions are relative
    there = ids.flip(1)
    full, other = (model_answer(loaded, one) for one in (ids, there))
    torch.testing.assert_close(full.double(), answer(loaded, ids), rtol=1e-5, atol=1e-5)
    output = loaded.model(input_ids=ids, **decoder_inputs(loaded, ids))
    assert torch.equal(answer_of(loaded, output), full)
    p, q = answer(loaded, ids), answer(loaded, there)
    wanted = (p - q).square().sum() if kind == "encoder" else (p.exp() * (p - q)).sum(-1).mean()
    found = answer_error(full, other)
    assert isinstance(found, float)
    assert found == pytest.approx(float(wanted), rel=1e-4)
    assert found > 1e-4
    assert answer_error(full, full) == 0


def test_units():
    assert [unit(kind) for kind in ("causal-lm", "masked-lm", "classifier", "encoder")] == [NATS] * 3 + [
        CHANGE
    ]
    assert [per_query(kind, 10) for kind in ("causal-lm", "seq2seq", "masked-lm", "classifier", "encoder")] == [
        0.5, 0.5, 0.5, 5.0, 10.0,
    ]  # fmt: skip


@pytest.mark.parametrize(("length", "count"), [(100, 7), (10, 10), (5, 30), (64, 1)])
def test_rows_are_spread_over_the_text(length, count):
    g = torch.Generator().manual_seed(0)
    rows = spread_rows(length, count, g)
    count = min(count, length)
    assert len(rows) == count
    for k, row in enumerate(rows.tolist()):
        assert k * length // count <= row < (k + 1) * length // count
    if count < length:
        assert not torch.equal(rows, spread_rows(length, count, g))


class TestDrawnBySize:
    @pytest.mark.parametrize("wide", [0.5, 2.0])
    def test_weighted_means_are_those_of_all(self, wide):
        """4,000 draws of 12 of 40 places; 5 standard errors (false alarm 6e-7). Means without weights are far off."""
        g = torch.Generator().manual_seed(0)
        size = (wide * torch.randn(40, generator=g)).exp()
        values = torch.stack([size.double(), torch.ones(40).double(), torch.arange(40).double()])
        drawn = [drawn_by_size(size, 12, g) for _ in range(4000)]
        for place, weight in drawn:
            assert place.tolist() == sorted(set(place.tolist()))
            assert float(weight.max()) <= 1 / EVEN + 1e-9
        means = torch.stack([(weight * values[:, place]).mean(1) for place, weight in drawn])
        off = (means.mean(0) - values.mean(1)).abs() / (means.std(0) / 4000**0.5)
        assert float(off.max()) < 5
        plain = torch.stack([values[0, place].mean() for place, _ in drawn])
        assert float((plain.mean() - values[0].mean()) / (plain.std() / 4000**0.5)) > 20
        assert float(means[:, 0].std()) < 0.7 * float(values[0].std()) / 12**0.5

    def test_what_is_sure_is_always_there(self):
        size = torch.tensor([1.0, 1.0, 1e6, 1.0, 1.0, 1.0, 1e6, 1.0])
        for seed in range(50):
            place, weight = drawn_by_size(size, 4, torch.Generator().manual_seed(seed))
            assert {2, 6} < set(place.tolist())
            assert weight[torch.isin(place, torch.tensor([2, 6]))].tolist() == pytest.approx([0.5, 0.5])

    @pytest.mark.parametrize("size", [0.0, torch.inf, torch.nan])
    def test_sizes_that_say_nothing(self, size):
        place, weight = drawn_by_size(torch.full((10,), size), 5, torch.Generator().manual_seed(0))
        assert [int(one) // 2 for one in place] == [0, 1, 2, 3, 4]
        assert weight.tolist() == [1] * 5

    def test_all_of_them(self):
        place, weight = drawn_by_size(torch.arange(6.0), 9, torch.Generator())
        assert (place.tolist(), weight.tolist()) == ([*range(6)], [1] * 6)


def test_labels_are_drawn_from_the_answer():
    """20,000 draws each at three positions of different laws, one with a class that cannot be: χ² with 4 + 4 + 3 degrees of
    freedom stays below 41.3 (false alarm 2e-5); against another position's law it does not."""
    law = torch.tensor(
        [[0.1, 0.2, 0.3, 0.15, 0.25], [0.01, 0.02, 0.9, 0.03, 0.04], [0.0, 0.4, 0.1, 0.2, 0.3]]
    ).repeat_interleave(20_000, 0)
    place = torch.rand(len(law), 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = gradient._label(law, place)
    assert drawn.shape == (60_000, 1)
    counts = torch.stack([one.flatten().bincount(minlength=5) for one in drawn.split(20_000)]).double()
    expected = 20_000 * law[::20_000].double()
    assert counts[2, 0] == 0
    off = (counts - expected).square() / expected.clamp_min(1e-9)
    assert float(off.sum()) < 41.3
    assert float(((counts[0] - expected[1]).square() / expected[1]).sum()) > 1000


@pytest.mark.parametrize(
    ("labels", "problem", "what"),
    [
        (1, None, "a score"),
        (3, "regression", r"3 scores \(regression\)"),
        (3, "multi_label_classification", r"3 scores \(multi_label_classification\)"),
    ],
)
def test_scores_that_choose_no_label_have_no_kl(labels: int, problem: str | None, what: str) -> None:
    """The softmax of one score is 1 whatever it is: its KL would always be zero."""
    config, model, settings = KINDS["classifier"]
    settings = {**settings, "num_labels": labels, "problem_type": problem}
    with torch.random.fork_rng():
        built = getattr(transformers, model)(getattr(transformers, config)(**settings))
    loaded = Loaded(built.eval().requires_grad_(False), None, "tiny", "classifier")
    with pytest.raises(ModelNotSupported, match=f"gives a text {what}, which is no choice .*--answer off"):
        model_answer(loaded, text())
    with pytest.raises(ModelNotSupported, match="which is no choice of one label"):
        answer_gradients(loaded, text(), torch.arange(3), 1, torch.Generator().manual_seed(0))
