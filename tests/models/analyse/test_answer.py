"""What budgets are predicted to do to a model's answer, and what they do.

Tiny models: 2 layers, 4 heads, 2 key heads where they are grouped, 48 tokens, 20 words. The Fisher matrix is that of all
labels, so that the only noise is that of the sampled runs.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import normalize

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.errors import InputError
from attnlimit.exact.populations import Seen
from attnlimit.models.analyse.answer import Answering, _kept_alone, group_squares
from attnlimit.models.attend.sampled import Attended, sampled_attention, sampled_output
from attnlimit.models.budget.answer import BASE, FOLLOWING, Answer
from attnlimit.models.budget.budgets import Budgets, HeadBudget
from attnlimit.models.see.gradient import answer_gradients
from attnlimit.models.see.interface import observe
from attnlimit.models.see.load import Loaded

LENGTH, RUNS = 48, 1000
SMALL = {
    "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "causal-lm": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "masked-lm": ("BertConfig", "BertForMaskedLM", SMALL),
    "classifier": ("BertConfig", "BertForSequenceClassification", {**SMALL, "num_labels": 3}),
    "encoder": ("LlamaConfig", "LlamaModel", GROUPED),
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "causal-lm, one key head, windows": ("MistralConfig", "MistralForCausalLM", {**GROUPED, "num_key_value_heads": 1, "sliding_window": 32}),
    "causal-lm, learned sinks": (
        "GptOssConfig", "GptOssForCausalLM",
        # Experts one by one: where torch has no product of groups, that of transformers has no gradients for many outputs at once.
        {**GROUPED, "experts_implementation": "eager", "sliding_window": 16, "num_local_experts": 2, "num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "masked-lm, rotary, global and local": (
        "ModernBertConfig", "ModernBertForMaskedLM",
        {**SMALL, "global_attn_every_n_layers": 2, "local_attention": 16, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2},
    ),
}  # fmt: skip
"""Models that nothing else here is fitted to."""
ALIKE = "causal-lm, heads of a group alike"
HEADS = [(layer, head) for layer in range(2) for head in range(4)]


@cache
def tiny(kind: str) -> Loaded:
    """Scores differ by about 1, some words are large, and what attention adds is small: so are its errors."""
    config, model, settings = (KINDS | FAMILIES)["causal-lm" if kind == ALIKE else kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = getattr(transformers, model)(getattr(transformers, config)(**settings))
    for name, weight in built.named_parameters():
        if name.endswith(("o_proj.weight", "attention.output.dense.weight", "attn.Wo.weight")):
            weight.data *= 0.1 if "sinks" in kind else 0.05
        if name.endswith(("q_proj.weight", "self.query.weight")):
            weight.data *= 0.4
        if name.endswith(("embed_tokens.weight", "word_embeddings.weight")):
            weight.data[10:] *= 4
        if kind == ALIKE and name.endswith("q_proj.weight"):
            weight.data[8:16], weight.data[24:] = weight.data[:8], weight.data[16:24]
        if kind == ALIKE and name.endswith("o_proj.weight"):
            weight.data[:, 8:16], weight.data[:, 24:] = weight.data[:, :8], weight.data[:, 16:24]
    return Loaded(built.eval().requires_grad_(False), None, "tiny", kind.split(",")[0])


def text(seed: int = 1) -> Tensor:
    return torch.randint(3, 20, (1, LENGTH), generator=torch.Generator().manual_seed(seed))


def said(loaded: Loaded, ids: Tensor) -> Tensor:
    """Log-probabilities (B, positions, words), or embeddings (B, d)."""
    found = loaded.model(input_ids=ids)
    if loaded.kind == "encoder":
        return normalize(found.last_hidden_state.double().mean(1), dim=-1)
    return found.logits.double().view(len(ids), -1, found.logits.shape[-1]).log_softmax(-1)


@contextmanager
def graph(loaded: Loaded) -> Iterator[dict[int, Tensor]]:
    """Outputs of the heads, by layer, that answers can be differentiated by."""
    outputs: dict[int, Tensor] = {}

    def keep(call: Any) -> Tensor:
        out = call.output()
        outputs[call.layer] = out if out.requires_grad else out.detach().requires_grad_()
        return outputs[call.layer]

    with torch.enable_grad(), observe(loaded.model, keep):
        yield outputs


@cache
def gradients(kind: str, seed: int = 1) -> dict[int, Tensor]:
    """Vectors with Σ aaᵀ = E ggᵀ at every query, all heads together, by all labels: Σ_t Σ_y p(y) ∂log p(y) ∂log p(y)ᵀ."""
    loaded, ids = tiny(kind), text(seed)
    with graph(loaded) as outputs:
        flat = said(loaded, ids).flatten()
        weight = torch.ones_like(flat) if kind == "encoder" else flat.detach().exp()
        total = [0.0] * 2
        for some in torch.eye(len(flat), dtype=flat.dtype).split(64):
            found = torch.autograd.grad(
                flat, list(outputs.values()), some, retain_graph=True, is_grads_batched=True
            )
            for layer, one in enumerate(found):
                given = one[:, 0].double().flatten(2)
                total[layer] += torch.einsum("c,cqx,cqy->qxy", some @ weight, given, given)
    roots = {}
    for layer, matrix in enumerate(total):
        size, axes = torch.linalg.eigh(matrix)
        root = axes * size.clamp_min(0).sqrt()[..., None, :]
        roots[layer] = root.permute(2, 0, 1).unflatten(2, (4, -1)).float()
    return roots


def answer_of(kind: str, given: dict[int, Tensor], draws: int = 1, grouped: bool = False) -> Answer:
    """At every query, with given gradients."""
    loaded, ids = tiny(kind), text()
    one = Answering(loaded, ids, LENGTH, draws, 0, grouped)
    one.passages, one.weights = [0] * LENGTH, [1.0] * LENGTH

    def look(call: Any) -> None:
        one.add(call, torch.arange(LENGTH), given[call.layer])

    with torch.no_grad(), observe(loaded.model, look):
        loaded.model(input_ids=ids)
    return one.found()


def read(one: Answering, passage: int) -> None:
    one.read(passage, lambda call, out: None, lambda: None)


@cache
def exact_answer(kind: str) -> Answer:
    return answer_of(kind, gradients(kind))


def budgets(make: Callable[[int, int], HeadBudget]) -> Budgets:
    return Budgets(model="", layers=2, heads=4, entries=tuple(make(*place) for place in HEADS))


def by_head(n: int, kept: Kept = BASE) -> Budgets:
    return budgets(lambda layer, head: HeadBudget(layer, head, sampling(kept), n))


def by_query(kind: str, factor: float) -> Budgets:
    unit = exact_answer(kind).options().unit
    return budgets(
        lambda layer, head: replace(
            FOLLOWING, layer=layer, head=head, by_query=factor * float(unit[layer, head])
        )
    )


def sampling(kept: Kept) -> Sampling:
    return Sampling(draw=Different(), kept=kept, weight="rest")


@dataclass(frozen=True)
class Lost:
    """The mean over sampled runs, and its standard error."""

    mean: float
    error: float

    def is_like(self, predicted: float) -> bool:
        """Within 5 standard errors (a false alarm of 6e-7) and 10 %: terms of third order, the bias of few drawn keys,
        and that of f·g/h where few are left."""
        return abs(predicted - self.mean) < 5 * self.error + 0.1 * self.mean


def measure(kind: str, chosen: Budgets) -> Lost:
    """KL a token (a classifier: a text) or squared change, text by text of a batch: each draws its own keys."""
    loaded, ids = tiny(kind), text()
    with torch.no_grad():
        full = said(loaded, ids)
        with sampled_attention(loaded.model, chosen, generator=0):
            now = said(loaded, ids.expand(RUNS, -1))
    if kind == "encoder":
        each = (now - full).square().sum(-1)
    else:
        each = (full.exp() * (full - now)).sum(-1).mean(-1)
    return Lost(float(each.mean()), float(each.std() / RUNS**0.5))


class TestPrediction:
    """Predicted and measured, for several kinds of models and budgets, with wrong gradients as a negative control."""

    @pytest.mark.parametrize("kind", [*KINDS, *FAMILIES])
    def test_by_head(self, kind):
        chosen = by_head(16)
        lost = measure(kind, chosen)
        assert 1e-4 < lost.mean < 2e-2
        assert lost.error < 0.04 * lost.mean
        predicted = exact_answer(kind).predict(chosen.entries)
        assert lost.is_like(predicted.value), (predicted, lost)
        assert predicted.low <= predicted.value <= predicted.high

    @pytest.mark.parametrize("kind", [*KINDS, *FAMILIES])
    def test_by_query(self, kind):
        chosen = by_query(kind, 0.5)
        lost = measure(kind, chosen)
        assert lost.error < 0.04 * lost.mean
        predicted = exact_answer(kind).predict(chosen.entries)
        assert lost.is_like(predicted.value), (predicted, lost)

    def test_with_top_keys_and_in_one_head(self):
        answer = exact_answer("causal-lm")
        one = budgets(
            lambda layer, head: HeadBudget(
                layer, head, sampling(BASE), 8 if (layer, head) == (0, 1) else None
            )
        )
        for chosen in (by_head(8, replace(BASE, top=8)), one):
            lost = measure("causal-lm", chosen)
            predicted = answer.predict(chosen.entries)
            assert lost.is_like(predicted.value), (predicted, lost)
        terms = answer.terms(one.entries)[0]
        assert bool((terms[0, 1] > 0).any())
        assert int((terms.sum(2) > 0).sum()) == 1

    @pytest.mark.parametrize("kind", ["causal-lm", "encoder"])
    def test_not_with_the_gradients_of_other_queries(self, kind):
        wrong = answer_of(kind, {layer: one.flip(1) for layer, one in gradients(kind).items()})
        lost = measure(kind, by_head(16))
        assert not lost.is_like(wrong.predict(by_head(16).entries).value)

    def test_not_with_the_gradients_of_another_text(self):
        wrong = answer_of("classifier", gradients("classifier", 2))
        for chosen in (by_head(16), by_query("classifier", 0.5)):
            assert not measure("classifier", chosen).is_like(wrong.predict(chosen.entries).value)

    @pytest.mark.parametrize("kind", ["causal-lm", "classifier"])
    def test_of_drawn_labels_is_that_of_all_labels(self, kind):
        """Sets of 16 draws, as `analyze` draws them: their mean is within 5 standard errors (false alarm of
        Student's t: 0.03 %, once and for all with this seed)."""
        g = torch.Generator().manual_seed(3)
        entries = by_head(16).entries
        found = []
        for _ in range(13):
            given = answer_gradients(tiny(kind), text(), torch.arange(LENGTH), 16, g)
            found.append(answer_of(kind, given, 16).predict(entries).value)
        mean, error = torch.tensor(found).mean(), torch.tensor(found).std() / 13**0.5
        exact = exact_answer(kind).predict(entries).value
        assert float(error) < 0.2 * exact
        assert abs(float(mean) - exact) < 5 * float(error)


class TestKeys:
    """Keys that are counted in the analysis are those that sampled attention reads."""

    @pytest.mark.parametrize("kind", ["causal-lm", "masked-lm"])
    @pytest.mark.parametrize("factor", [0.05, 0.5, 2.0])
    def test_are_those_attended_to(self, kind, factor):
        """With the full model's own queries and keys in both layers: only rounding of two equal costs may differ."""
        loaded, chosen = tiny(kind), by_query(kind, factor)
        attended = Attended.nothing(2, 4)

        def count(call: Any) -> None:
            sampled_output(call, chosen.layer(call.layer), 0, attended=attended)

        with torch.no_grad(), observe(loaded.model, count):
            loaded.model(input_ids=text())
        errors, keys = exact_answer(kind).terms(chosen.entries)
        assert bool((attended.group >= attended.keys).all())
        assert torch.equal(attended.seen, exact_answer(kind).seen.sum(2).double())
        assert float((attended.keys - keys.sum(2)).abs().max()) <= 2
        assert float((attended.keys / keys.sum(2) - 1).abs().mean()) < 1e-3
        assert bool((errors >= 0).all())

    def test_of_the_same_number_everywhere(self):
        chosen = by_head(7, replace(BASE, window=16))
        with torch.no_grad(), sampled_attention(tiny("causal-lm").model, chosen, generator=0) as attended:
            tiny("causal-lm").model(input_ids=text())
        keys = exact_answer("causal-lm").terms(chosen.entries)[1]
        assert torch.equal(attended.keys, keys.sum(2).double())


class TestAnswering:
    def test_reads_every_passage_at_queries_of_its_own(self):
        loaded = tiny("causal-lm")
        windows = torch.cat([text(1), text(2)])
        one = Answering(loaded, windows, 10, 2, 0)
        layers: list[int] = []
        for passage in range(2):
            one.read(passage, lambda call, out: layers.append(call.layer), lambda: layers.append(-1))
        assert layers == [0, 1, -1, -1] * 2  # looked at in the forward pass, finished after the backward one
        found = one.found()
        assert found.passage.tolist() == [0] * 5 + [1] * 5
        assert found.seen.shape == (2, 4, 10)
        for rows in found.seen[0, 0].split(5):
            assert rows.tolist() == sorted(set(rows.tolist()))
        assert found.squares.shape == (2, 4, 10, 18, len(found.share))
        assert found.unit == "nats"

    @pytest.mark.parametrize("kind", ["causal-lm", "encoder"])
    def test_some_queries_stand_for_all(self, kind):
        """A quarter of them, 16 times: errors and keys are in the mean those of all queries (5 standard errors, false alarm 2e-4 of
        Student's t each). Without their weights they are not."""
        loaded, entries, queries = tiny(kind), by_head(8).entries, LENGTH // 4
        found = []
        for seed in range(16):
            one = Answering(loaded, text(), queries, 16, seed)
            read(one, 0)
            answer = one.found()
            alike = replace(answer, weight=torch.ones(queries))
            terms = [part.mean(2).sum() for each in (answer, alike) for part in each.terms(entries)]
            found.append(torch.stack([*terms, answer.visible.sum()]).double())
        mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / 16**0.5
        exact, keys = (float(part.mean(2).sum()) for part in exact_answer(kind).terms(entries))
        off = (
            mean - torch.tensor([exact, keys, exact, keys, float(exact_answer(kind).visible.sum())])
        ) / error
        assert abs(float(off[0])) < 5
        assert float(error[0]) < 0.1 * exact
        assert float(off[2]) > 6
        if kind == "causal-lm":
            assert off[[1, 4]].abs().max() < 5
            assert float(off[3]) > 6


class TestGroups:
    """Query heads that read the same keys: two for each key head."""

    @pytest.mark.parametrize("kind", ["causal-lm", "encoder", ALIKE])
    @pytest.mark.parametrize("kept", [BASE, replace(BASE, top=8)], ids=str)
    def test_prediction(self, kind, kept):
        """As measured; where heads are alike, or keep what the other keeps, not what they would add up to with draws of their
        own."""
        answer = answer_of(kind, gradients(kind), grouped=True)
        assert answer.group == 2
        assert answer.seen.shape == (2, 2, LENGTH)
        chosen = replace(by_head(8, kept), group=2)
        lost = measure(kind, chosen)
        predicted = answer.predict(chosen.entries).value
        assert lost.is_like(predicted), (predicted, lost)
        apart = exact_answer(kind).predict(chosen.entries).value
        if kept.top or kind == ALIKE:
            assert not lost.is_like(apart), (apart, predicted, lost)

    @pytest.mark.parametrize("sink", [None, 0.5])
    @pytest.mark.parametrize("heads", [2, 3])
    def test_against_all_draws(self, generator, heads, sink):
        """Three of seven keys, one kept, all 20 draws: to a part in a thousand, and far from heads that draw by themselves."""
        scores = 1.5 * torch.randn(heads, 1, 7, generator=generator, dtype=torch.float64)
        values = torch.randn(heads, 1, 7, 2, generator=generator, dtype=torch.float64)
        sinks = torch.full((heads, 1), -torch.inf if sink is None else sink, dtype=torch.float64)
        weight = torch.cat([scores, sinks[..., None]], -1).softmax(-1)[..., :-1]
        kept = torch.zeros(1, 1, 7, dtype=torch.bool)
        kept[..., 2] = True
        seen = [
            Seen(s, v, sink=None if sink is None else one)
            for s, v, one in zip(scores, values, sinks, strict=True)
        ]
        found = group_squares(seen, weight, kept, torch.tensor([0.5], dtype=torch.float64))
        assert found.shape == (1, 1, 1)
        full, nothing = weight[:, 0, None] @ values[:, 0], 1 - weight[:, 0].sum(-1)
        squares = []
        for drawn in itertools.combinations((0, 1, 3, 4, 5, 6), 3):
            read = torch.zeros(7, dtype=torch.float64)
            read[[*drawn]], read[2] = 2.0, 1.0  # each of three stands for two of six
            part = read * weight[:, 0]
            output = (part[:, None] @ values[:, 0])[:, 0] / (part.sum(-1) + nothing)[:, None]
            squares.append((output - full[:, 0]).sum(0).square().sum())
        exact = float(torch.stack(squares).mean())
        assert float(found) == pytest.approx(exact, rel=1e-3)
        apart = sum(
            float(group_squares([s], w[None], kept, torch.tensor([0.5])))
            for s, w in zip(seen, weight, strict=True)
        )
        assert apart != pytest.approx(exact, rel=0.05)

    def test_weights_that_sum_to_1_but_for_rounding_have_no_sink(self, generator):
        scores = torch.randn(3, 1, 9, generator=generator, dtype=torch.float64)
        values = torch.randn(3, 1, 9, 1, generator=generator, dtype=torch.float64)
        weight, kept = scores.softmax(-1), torch.zeros(1, 1, 9, dtype=torch.bool)
        seen, share = [Seen(*one) for one in zip(scores, values, strict=True)], torch.tensor([0.5]).double()
        exact = group_squares(seen, weight / weight.sum(-1, keepdim=True), kept, share)
        less = weight.clone()
        less[0, 0, 0] -= 4e-16  # the other two heads have none
        less[1:, 0, 0] += 4e-16
        torch.testing.assert_close(group_squares(seen, less, kept, share), exact, rtol=1e-9, atol=0)

    def test_keys_are_those_that_key_heads_give(self):
        chosen = replace(by_head(7, replace(BASE, top=4)), group=2)
        with torch.no_grad(), sampled_attention(tiny("causal-lm").model, chosen, generator=0) as attended:
            tiny("causal-lm").model(input_ids=text())
        assert torch.equal(attended.keys, attended.group)
        assert attended.share == attended.key_head_share
        keys = answer_of("causal-lm", gradients("causal-lm"), grouped=True).terms(chosen.entries)[1]
        # the first layer has the full model's scores
        assert torch.equal(attended.keys[0], keys[0].sum(1).repeat_interleave(2).double())

    def test_budgets_are_the_same_in_a_group(self):
        answer = answer_of("causal-lm", gradients("causal-lm"), grouped=True)
        found = answer.options().cheapest(keys=0.5 * float(answer.seen.mean(2).sum()))
        chosen = Budgets("", 2, 4, found.entries, group=2)
        assert chosen.share == pytest.approx(0.5, abs=0.06)
        assert sum(one.answer for one in chosen.entries) == pytest.approx(found.predicted.value)
        with pytest.raises(InputError, match="heads 0 and 1 read the same keys"):
            replace(chosen, entries=(replace(chosen.entries[0], n=9), *chosen.entries[1:]))
        with pytest.raises(InputError, match="groups of 3"):
            replace(chosen, group=3)


class TestTrials:
    def test_factor_is_what_was_found_over_what_was_predicted(self):
        """Straight lines over log error between trials. Of one passage the interval is the queries'."""
        answer = exact_answer("causal-lm")
        known = replace(answer, trials=torch.tensor([[[0.01], [0.02]], [[0.04], [0.02]]]).double())
        assert [known.factor(one) for one in (1.0, 0.04, 0.02, 0.01, 1e-4)] == pytest.approx(
            [0.5, 0.5, 1.25, 2, 2]
        )
        entries = by_head(16).entries
        plain = answer.predict(entries)
        assert known.predict(entries).value == pytest.approx(2 * plain.value)
        assert known.predict(entries).high == pytest.approx(2 * plain.high)

    def test_several_passages_make_the_interval(self):
        """1, 2 and 6 times what was predicted: typically 2. Its width is that of what the passages lose, each with its own factor."""
        answer, entries = exact_answer("causal-lm"), by_head(16).entries
        answer = replace(answer, passage=torch.arange(LENGTH) % 3)
        known = replace(
            answer, trials=torch.tensor([[[0.005, 0.008, 0.017], [0.005, 0.016, 0.102]]]).double()
        )
        plain, found = answer.predict(entries), known.predict(entries)
        assert found.value == pytest.approx(2 * plain.value)
        by_query = answer.terms(entries)[0].sum((0, 1)).double()
        lost = torch.tensor([k * float(by_query[place::3].mean()) for place, k in enumerate((1, 2, 6))])
        wide = math.exp(4.30265 * float(lost.std() / lost.mean()) / math.sqrt(3))
        assert found.high == pytest.approx(float(lost.mean()) * wide, rel=1e-4)
        assert found.low == pytest.approx(found.value / wide, rel=1e-4)
        assert found.high > 6 * plain.value
        alike = torch.tensor([[[0.01] * 4, [0.02] * 4]]).double()
        sure = replace(exact_answer("causal-lm"), trials=alike).predict(entries)
        assert sure.low == pytest.approx(sure.high) == pytest.approx(2 * plain.value)

    @pytest.mark.parametrize("kind", KINDS)
    def test_are_made_with_the_model_itself(self, kind):
        loaded, windows = tiny(kind), torch.cat([text(1), text(2)])
        one = Answering(loaded, windows, 2 * LENGTH, 16, 0)
        for passage in range(2):
            read(one, passage)
        found = one.tried(one.found())
        assert found.trials.shape == (3, 2, 2)
        assert bool((found.trials[:, 0].mean(1).diff() >= 0).all())
        # one text of a classifier, drawn once, says little
        again = [found, *(one.tried(one.found()) for _ in range(7 if kind == "classifier" else 0))]
        predicted, measured = torch.stack([each.trials for each in again]).mean((0, 3)).T
        assert bool((measured / predicted > 0.25).all())
        assert bool((measured / predicted < 3).all())
        assert float(found.alone.sum()) >= float(one.found().alone.sum())


class TestKeptAlone:
    def test_errors_by_hand(self):
        """Two labels, a sink that takes a fifth, and two kept sets."""
        g = torch.Generator().manual_seed(0)
        weight = 0.8 * torch.rand(3, 6, generator=g, dtype=torch.float64).softmax(1)
        values = torch.randn(3, 6, 2, generator=g, dtype=torch.float64)
        kept = torch.rand(2, 3, 6, generator=g) < 0.5
        found = _kept_alone(weight, values, kept)
        for s, q in [(s, q) for s in range(2) for q in range(3)]:
            full = weight[q] @ values[q]
            inside = weight[q] * kept[s, q]
            change = inside @ values[q] / (inside.sum() + 0.2) - full
            assert found[s, q].tolist() == pytest.approx(change.tolist())
