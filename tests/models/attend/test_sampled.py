"""Sampled attention: the error that theory says, only the keys that it may read, and the model as it was."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
import torch
import transformers
from scipy import stats
from torch import Tensor

from attnlimit.designs import Different, Kept, Sampling
from attnlimit.designs.by_query import FEWEST, TOPS
from attnlimit.errors import InputError, ModelNotSupported
from attnlimit.models import attention_layers, observe
from attnlimit.models.attend import dense, reading, sampled
from attnlimit.models.attend.draws import Stream, first_of_order
from attnlimit.models.attend.sampled import sampled_attention, sampled_output
from attnlimit.models.budget.answer import FOLLOWING
from attnlimit.models.budget.budgets import Budgets, HeadBudget
from attnlimit.models.budget.needed import RANDOM
from attnlimit.models.see import call
from attnlimit.models.see.call import Call
from tests.versions import need_t5

SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.4,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
GPT_OSS = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", SMALL),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {
            **GROUPED,
            "sliding_window": 4,
            "attn_logit_softcapping": 1.5,
            "query_pre_attn_scalar": 8,
            "attn_implementation": "eager",  # fused attention leaves out the cap
        },
    ),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", {**GROUPED, **GPT_OSS, **ROPE}),
    "t5": ("T5Config", "T5ForConditionalGeneration", {**T5, "decoder_start_token_id": 0}),
}


def tiny(family: str) -> Any:
    """Random weights, large enough that scores differ."""
    if family == "t5":
        need_t5()
    config, model, settings = MODELS[family]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return built.eval().requires_grad_(False)


def text(model: Any, side: str = "right", length: int = 14) -> dict[str, Tensor]:
    """Two texts, the second with five padded places on one side, or none."""
    ids = torch.randint(5, 100, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if side != "none":
        mask[1, slice(-5, None) if side == "right" else slice(0, 5)] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, 2:9]
    return inputs


def answer(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """What the model says at its real tokens."""
    out = model(**inputs)[0]
    if model.config.is_encoder_decoder:
        return out
    return out[inputs["attention_mask"].bool()]


def keeping(kept: Kept, weight: Any = "rest") -> Sampling:
    return Sampling(draw=Different(), kept=kept, weight=weight)


def uniform(model: Any, n: int | None, **kept: Any) -> Budgets:
    return Budgets.uniform(attention_layers(model), n, keeping(Kept(**kept)))


def calls(model: Any, inputs: dict[str, Tensor]) -> list[Call]:
    found: list[Call] = []
    with observe(model, lambda call: found.append(call)):
        model(**inputs)
    return found


class TestDraws:
    """Every query's keys are n different ones, uniform over its rest, whatever queries have in common."""

    REST = torch.tensor(
        [[1, 0, 1, 1, 0, 0], [1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]]
    ).bool()

    def draw(self, way: str, seed: int, n: int) -> Tensor:
        stream = Stream(seed, 6, 4, per_query=way == "per query")
        return first_of_order(self.REST, stream.order, torch.tensor([n]), stream.start[:, None])

    @pytest.mark.parametrize("way", ["shared", "per query"])
    def test_sets_are_uniform(self, way):
        """A χ² test of 3,000 draws of 2 of 4 keys: a right law fails with probability 1e-4."""
        seen: Counter[tuple[int, ...]] = Counter()
        for seed in range(3000):
            taken = self.draw(way, seed, 2)
            assert not bool((taken & ~self.REST).any())
            assert taken.sum(1).tolist() == [2, 2, 1, 0]
            seen[tuple(taken[1].nonzero()[:, 0].tolist())] += 1
        assert len(seen) == 6
        assert stats.chisquare(list(seen.values())).pvalue > 1e-4

    @pytest.mark.parametrize("way", ["shared", "per query"])
    def test_all_of_the_rest_or_nothing(self, way):
        assert torch.equal(self.draw(way, 0, 6), self.REST)
        assert torch.equal(self.draw(way, 0, 99), self.REST)
        assert not bool(self.draw(way, 0, 0).any())

    def test_draws_of_queries_are_shared_or_uncorrelated(self):
        """The same rest: the same keys; or, of two queries, Cov(j drawn by one, k by the other) = 0 for all keys j, k.
        100,000 pairs of 3 of 6 keys: each of 36 covariances has a standard error of 0.25/√100,000 = 8e-4."""
        rest = torch.ones(2, 6, dtype=torch.bool)
        alike = first_of_order(rest, Stream(0, 6, 1).order, torch.tensor([3]), torch.tensor([[0]]))
        assert torch.equal(alike[0], alike[1])
        g = torch.Generator().manual_seed(0)
        order = torch.rand(100_000, 1, 6, generator=g).argsort(-1)
        start = torch.randint(6, (100_000, 2, 1), generator=g)
        one, other = first_of_order(rest, order, torch.tensor([3]), start).double().unbind(1)
        covariance = (one - 0.5).T @ (other - 0.5) / len(one)
        assert float(covariance.abs().max()) < 4.5 * 8e-4

    def test_a_start_at_the_very_end_of_an_order_of_more_keys(self):
        rest, n = torch.ones(1, 3, dtype=torch.bool), torch.tensor([2])
        taken = first_of_order(rest, torch.tensor([0, 4, 1, 3, 2]), n, torch.tensor([[4]]))
        assert taken.tolist() == [[True, False, True]]


class TestWholeBudget:
    """With every key kept, or drawn once, the model's own outputs come back through our arithmetic: soft caps, windows,
    position bias, sinks, padding, grouped heads and cross-attention included."""

    @pytest.mark.parametrize("side", ["none", "right", "left"])
    @pytest.mark.parametrize("family", MODELS)
    def test_reproduces_the_model(self, family, side):
        model = tiny(family)
        inputs = text(model, side)
        full = answer(model, inputs)
        scale = float(full.abs().max())
        for kept in ({"top": 1000}, {"sinks": 1000}):
            with sampled_attention(model, uniform(model, 0, **kept), generator=0) as attended:
                assert torch.allclose(answer(model, inputs), full, rtol=0, atol=2e-5 * scale)
            assert attended.share == 1
        for per_query in (False, True):
            with sampled_attention(
                model, uniform(model, 1000, own=True), generator=0, per_query=per_query
            ) as attended:
                assert torch.allclose(answer(model, inputs), full, rtol=0, atol=2e-5 * scale)
            assert attended.share == 1

    def test_full_heads_are_the_models_own(self):
        model = tiny("bert")
        inputs = text(model)
        with observe(
            model, lambda call: None
        ):  # our call of the kernel, which may round otherwise than the model's
            own = answer(model, inputs)
        with sampled_attention(model, uniform(model, None), generator=0) as attended:
            assert torch.equal(answer(model, inputs), own)
        assert attended.share == 1
        assert attended.forward_calls == [1, 1]

    def test_full_and_sampled_heads_side_by_side(self):
        model = tiny("llama")
        one = calls(model, text(model))[0]
        budgets = [HeadBudget(0, h, keeping(Kept()), None if h == 2 else 4) for h in range(4)]
        out, full = sampled_output(one, budgets, 0), one.output()
        same = [torch.equal(out[:, :, h], full[:, :, h]) for h in range(4)]
        assert same == [False, False, True, False]
        assert torch.equal(one.output(), full)


QUERIES = torch.arange(6, 19)
"""Real queries of the padded text that see something besides what they keep."""


def one_call(family: str, sharpen: float) -> Call:
    """The first layer's call on a padded text of 24 tokens alone, in double precision and with flatter scores."""
    model = tiny(family)
    one = calls(model, text(model, "right", 24))[0]
    query, key, value = (x[1:].double() for x in (one.query, one.key, one.value))
    mask = replace(one.mask, padding=one.mask.padding[1:])
    return replace(one, query=sharpen * query, key=key, value=value, mask=mask, real=None)


def copies(one: Call, count: int) -> Call:
    """The same text many times in one batch."""
    whole = [x.expand(count, *x.shape[1:]) for x in (one.query, one.key, one.value)]
    mask = replace(one.mask, padding=one.mask.padding.expand(count, -1))
    return replace(one, query=whole[0], key=whole[1], value=whole[2], mask=mask)


@pytest.mark.parametrize(("family", "sharpen"), [("bert", 0.5), ("llama", 0.3)])
class TestTheory:
    """The mean square error of a head is the mean over all sets of n keys that it can draw, each enumerated.

    Each comparison averages all queries of one head over independent draws. z is the difference in standard errors; a
    right program exceeds 4.5 with probability 7e-6 by the normal law, and below 1e-3 for all comparisons here even if
    tails are somewhat heavier. The standard error is asked to be small too, so that wrong weights are seen.
    """

    @pytest.mark.parametrize(
        ("kept", "n", "importance"),
        [
            (Kept(), 4, True),
            (Kept(sinks=1, top=2), 3, True),
            (Kept(sinks=1, top=2), 3, False),
        ],
    )
    def test_draws_of_each_query(self, family, sharpen, kept, n, importance):
        one = one_call(family, sharpen)
        budgets = [HeadBudget(0, h, keeping(kept, "rest" if importance else "plain"), n) for h in range(4)]
        got = sampled_output(copies(one, 400), budgets, 7, per_query=True)
        for head in range(4):
            self._compare(got[:, QUERIES, head], one, head, kept, n, importance, precision=0.05)

    @pytest.mark.parametrize("way", ["shared", "per query"])
    def test_draws_beside_the_own_token_and_a_window(self, family, sharpen, way):
        one, kept, n = one_call(family, sharpen), Kept(own=True, sinks=1, window=2), 5
        budgets = [HeadBudget(0, h, keeping(kept), n if h < 2 else None) for h in range(4)]
        got = sampled_output(copies(one, 120), budgets, 7, per_query=way == "per query")
        for head in range(2):
            self._compare(got[:, QUERIES, head], one, head, kept, n, True, precision=0.12)

    def _compare(
        self, samples: Tensor, one: Call, head: int, kept: Kept, n: int, importance: bool, precision: float
    ) -> None:
        expected, limit = self._enumerated(one, head, kept, n, importance)
        error = (samples - limit).square().sum(-1).mean(1)
        standard_error = float(error.std()) / len(error) ** 0.5
        assert standard_error < precision * expected
        assert abs(float(error.mean()) - expected) < 4.5 * standard_error

    def _enumerated(self, one: Call, head: int, kept: Kept, n: int, importance: bool) -> tuple[float, Tensor]:
        scores, values = one.scores(0, head, QUERIES), one.value[0, head // one.groups]
        always = kept.mask(scores, QUERIES) & (scores > -torch.inf)
        limit = scores.softmax(1) @ values
        errors = []
        for score, own, full in zip(scores, always, limit, strict=True):
            rest = ((score > -torch.inf) & ~own).nonzero()[:, 0]
            sets = torch.tensor(list(combinations(rest.tolist(), min(n, len(rest)))))
            times = own.double().expand(len(sets), -1)
            times = times.scatter_add(
                1, sets, torch.full(sets.shape, len(rest) / sets.shape[1] if importance else 1.0).double()
            )
            weights = (score - score.max()).exp() * times
            errors.append((weights / weights.sum(1, keepdim=True) @ values - full).square().sum(1).mean())
        return float(torch.stack(errors).mean()), limit


class TestMasks:
    @pytest.mark.parametrize("per_query", [False, True])
    @pytest.mark.parametrize("family", ["bert", "llama", "mistral", "t5"])
    def test_keys_that_are_not_seen_are_never_read(self, family, per_query):
        model = tiny(family)
        budgets = [HeadBudget(0, h, keeping(Kept(own=True, sinks=1, window=2)), 6) for h in range(4)]
        for one in calls(model, text(model)):
            hidden = torch.stack([one.hidden(b, slice(None)) for b in range(2)])  # (B, Lq, Lk)
            assert bool(hidden.any()) or family == "t5"
            out = sampled_output(one, budgets, 3, per_query=per_query)
            for row in (0, 5, hidden.shape[1] - 1):
                huge = one.value.masked_fill(hidden[:, row][:, None, :, None], 1e6)
                again = sampled_output(replace(one, value=huge), budgets, 3, per_query=per_query)
                assert torch.equal(again[:, row], out[:, row])

    def test_sinks_are_the_first_tokens_after_padding_on_the_left(self):
        """Nothing is random here, so a padded text and the same text alone must agree."""
        model = tiny("llama")
        inputs = text(model, "left")
        budgets = uniform(model, 0, own=True, sinks=2, window=3)
        position = (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)
        with sampled_attention(model, budgets, generator=0):
            padded = model(**inputs, position_ids=position).logits[1, 5:]
            alone = model(input_ids=inputs["input_ids"][1:, 5:]).logits[0]
        assert torch.allclose(padded, alone, atol=1e-4)

    def test_a_query_with_nothing_to_attend_to(self):
        model = tiny("mistral")  # the first token is outside the window of later ones
        with (
            pytest.raises(
                InputError, match=r"Layer 0, head 0: a query sees none of its kept keys .* Sample at least"
            ),
            sampled_attention(model, uniform(model, 0, sinks=1), generator=0),
        ):
            model(**text(model, "none"))

    def test_cross_attention_has_no_own_key(self):
        model = tiny("t5")
        inputs = text(model, "none")
        with sampled_attention(model, uniform(model, 3, own=True, window=4), generator=0) as attended:
            model(**inputs)
        cross = next(layer.index for layer in attention_layers(model) if "EncDec" in layer.name)
        assert float(attended.keys_per_query[cross].max()) <= 3
        assert float(attended.keys_per_query[0].min()) > 3

    @pytest.mark.parametrize("family", ["llama", "bert"])
    def test_padded_queries_may_have_nothing(self, family):
        """Padding on the right sees real keys, but with a window alone it keeps none of them."""
        model = tiny(family)
        with sampled_attention(model, uniform(model, 0, window=2), generator=0) as attended:
            assert bool(answer(model, text(model)).isfinite().all())
        assert attended.queries[0, 0] == 14 + 9


class TestCost:
    @pytest.mark.parametrize("per_query", [False, True])
    @pytest.mark.parametrize("family", ["bert", "llama"])
    def test_keys_counted_are_those_expected(self, family, per_query):
        """Exactly: nothing about the number of keys is random."""
        model = tiny(family)
        budgets = uniform(model, 8, own=True, sinks=1, window=3)
        inputs = text(model, "none", 30)
        g = torch.Generator().manual_seed(0)
        with sampled_attention(model, budgets, generator=g, per_query=per_query) as attended:
            for _ in range(5):
                model(**inputs)
        expected = budgets.cost(30, causal=family == "llama")
        assert float(attended.keys_per_query.sum()) / 8 == pytest.approx(expected.keys / 8)
        assert attended.share == pytest.approx(expected.share)
        assert attended.forward_calls == [5, 5]
        assert "keys per query and head" in repr(attended)
        assert attended.to_dict()["share"] == attended.share

    def test_padded_queries_are_not_counted(self):
        model = tiny("bert")
        with sampled_attention(model, uniform(model, 2), generator=0) as attended:
            assert repr(attended) == "Attended(nothing yet)"
            model(**text(model))
        assert attended.queries[0, 0] == 14 + 9
        assert attended.seen[0, 0] == 14 * 14 + 9 * 9
        assert attended.keys[0, 0] == attended.group[0, 0] == 2 * (14 + 9)

    @pytest.mark.parametrize("per_query", [False, True])
    @pytest.mark.parametrize("side", ["right", "left", "none"])
    def test_keys_of_a_key_head_are_those_of_its_query_heads_together(self, side, per_query):
        """Values that name their keys show which keys each query head reads; two share a key head. Kept, drawn, followed
        and full heads."""
        model = tiny("llama")
        inputs = text(model, side, 20)
        for budgets in (
            [
                HeadBudget(0, 0, keeping(Kept(own=True)), 3), replace(FOLLOWING, head=1, by_query=0.1),
                HeadBudget(0, 2, keeping(Kept(sinks=1, window=3)), 0), HeadBudget(0, 3, keeping(Kept(own=True, sinks=2, top=2)), 2),
            ],
            [
                HeadBudget(0, 0), HeadBudget(0, 1, RANDOM, 3), HeadBudget(0, 2, RANDOM, 4), HeadBudget(0, 3, RANDOM, 4)
            ],
        ):  # fmt: skip
            one = calls(model, inputs)[0]
            assert one.groups == 2
            named = replace(one, value=torch.eye(20).expand(2, 2, 20, 20))
            attended = sampled.Attended.nothing(1, 4)
            read = sampled_output(named, budgets, 7, per_query=per_query, attended=attended) > 0
            groups, keys, seen = [0, 0], [0] * 4, 0
            for batch, row in inputs["attention_mask"].nonzero().tolist():
                sets = [set(read[batch, row, head].nonzero()[:, 0].tolist()) for head in range(4)]
                for head in range(4):
                    keys[head] += len(sets[head])
                groups[0] += len(sets[0] | sets[1])
                groups[1] += len(sets[2] | sets[3])
                seen += int(inputs["attention_mask"][batch, : row + 1].sum())
            assert attended.keys[0].tolist() == keys
            assert attended.group[0].tolist() == [groups[0], groups[0], groups[1], groups[1]]
            assert attended.seen[0].tolist() == [seen] * 4
            assert attended.key_head_share == pytest.approx(sum(groups) / (2 * seen))
            assert attended.key_head_share > attended.share
            assert attended.to_dict()["key_head_share"] == attended.key_head_share

    @pytest.mark.parametrize("per_query", [False, True])
    @pytest.mark.parametrize("family", ["bert", "t5"])
    def test_a_key_head_of_its_own_gives_what_its_query_head_reads(self, family, per_query):
        model = tiny(family)
        budgets = uniform(model, 3, own=True, top=2)
        with sampled_attention(model, budgets, generator=0, per_query=per_query) as attended:
            model(**text(model))
        assert torch.equal(attended.group, attended.keys)
        assert attended.key_head_share == attended.share < 1


class TestSeeds:
    @pytest.mark.parametrize("per_query", [False, True])
    @pytest.mark.parametrize("family", MODELS)
    def test_same_seed_same_output_however_it_is_computed(self, family, per_query, monkeypatch):
        """In blocks of any size: the draws do not change."""
        model = tiny(family)
        for one in calls(model, text(model, "right", 40)):
            budgets = [HeadBudget(1, h, keeping(Kept(sinks=1, window=h, top=h % 2)), 3 + h) for h in range(4)]
            monkeypatch.undo()
            first = sampled_output(one, budgets, 5, per_query=per_query)
            scale = float(first.abs().max())
            for entries in (1, 3000):
                monkeypatch.setattr(call, "BLOCK", entries)
                again = sampled_output(one, budgets, 5, per_query=per_query)
                assert torch.allclose(first, again, rtol=0, atol=1e-5 * scale)
            other = sampled_output(one, budgets, 6, per_query=per_query)
            assert not torch.allclose(first, other, rtol=0, atol=1e-5 * scale)

    def test_runs_repeat_bit_for_bit(self):
        model = tiny("bert")
        inputs = text(model)

        def run(seed: Any) -> Tensor:
            with sampled_attention(model, uniform(model, 4), generator=seed):
                return torch.stack([answer(model, inputs), answer(model, inputs)])

        assert torch.equal(run(1), run(1))
        assert torch.equal(run(1), run(torch.Generator().manual_seed(1)))
        assert not torch.equal(run(1), run(2))
        assert not torch.equal(*run(1))  # new draws in every forward pass

    def test_the_budget_of_one_head_leaves_the_others_draws(self):
        model = tiny("bert")
        one = calls(model, text(model))[0]
        budgets = [HeadBudget(0, h, keeping(Kept()), 4) for h in range(4)]
        other = [*budgets[:1], HeadBudget(0, 1, keeping(Kept(own=True)), 9), *budgets[2:]]
        same = (sampled_output(one, budgets, 0) == sampled_output(one, other, 0)).all(-1).all(1).all(0)
        assert same.tolist() == [True, False, True, True]


class TestModel:
    def test_is_as_it_was_afterwards_also_after_an_exception(self):
        model = tiny("llama")
        inputs = text(model)
        before, name = answer(model, inputs), model.config._attn_implementation

        def fail() -> None:
            with sampled_attention(model, uniform(model, 2), generator=0):
                assert not torch.allclose(answer(model, inputs), before)
                raise RuntimeError("on purpose")

        with pytest.raises(RuntimeError, match="on purpose"):
            fail()
        assert model.config._attn_implementation == name
        assert torch.equal(answer(model, inputs), before)

    def test_budgets_for_another_model_are_refused(self):
        model = tiny("bert")
        with (
            pytest.raises(InputError, match="for 3 layers of 4 heads, but the model has 2 layers of 4 heads"),
            sampled_attention(model, Budgets.uniform([4] * 3, 5), generator=0),
        ):
            pass
        with (
            pytest.raises(InputError, match="for 2 layers of 8 heads, but the model has 2 layers of 4 heads"),
            sampled_attention(model, Budgets.uniform([8] * 2, 5), generator=0),
        ):
            pass

    def test_a_layer_that_turns_out_to_have_other_heads(self, monkeypatch):
        model = tiny("bert")
        monkeypatch.setattr(Budgets, "check_fits", lambda *_: None)
        with (
            pytest.raises(
                InputError, match=r"Layer 0 \(.*\) has 4 heads, but the budgets are for 2 layers of 8"
            ),
            sampled_attention(model, Budgets.uniform([8] * 2, 5), generator=0),
        ):
            model(**text(model))

    def test_a_model_that_was_not_run_is_not_passed_over(self):
        model = tiny("bert")
        with (
            pytest.raises(ModelNotSupported, match="none of its layers"),
            sampled_attention(model, uniform(model, 2), generator=0),
        ):
            pass

    def test_a_generator_that_is_none(self):
        model = tiny("bert")
        with (
            pytest.raises(InputError, match=r"generator must be a torch\.Generator or a seed"),
            sampled_attention(model, uniform(model, 2), generator=True),
        ):
            pass

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision(self, dtype):
        model = tiny("llama").to(dtype)
        inputs = text(model)
        full = answer(model, inputs)
        with sampled_attention(model, uniform(model, 0, top=1000), generator=0):
            whole = answer(model, inputs)
        assert whole.dtype == dtype
        assert float((whole - full).abs().max()) < 0.05 * float(full.abs().max())


def following(model: Any, *factors: float) -> Budgets:
    """Heads whose queries follow their spread; the same factors in every layer."""
    layers = attention_layers(model)
    entries = [
        replace(FOLLOWING, layer=layer.index, head=head, by_query=factor)
        for layer in layers
        for head, factor in enumerate(factors)
    ]
    return Budgets(model="", layers=len(layers), heads=len(factors), entries=tuple(entries))


FACTORS = (0.0, 3.0, 12.0, 60.0)


def following_wanted(layer: Any, rows: Tensor) -> Any:
    """What a layer's queries want to read, before it is chosen which keys."""
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "read_keys", lambda *given: found.append(given[-1]) or reading.read_keys(*given))
        layer.block(rows)
    return found[0]


class TestByQuery:
    """Kept sets and numbers of drawn keys that follow each query."""

    def by_hand(
        self, one: Call, batch: int, head: int, row: int, factor: float, first: int
    ) -> tuple[set[int], int]:
        """Kept keys and n of one query of a text that begins at `first`, key by key in plain numbers."""
        scores = one.scores(batch, head, torch.tensor([row]))[0].double()
        seen = [j for j in range(len(scores)) if scores[j] > -torch.inf]
        weight = scores.exp()
        total = weight.sum() + (0.0 if one.sink is None else one.sink[head].double().exp())
        p = weight / total
        values = one.value[batch, head // one.groups].double()
        out = p @ values
        placed = {j for j in seen if first <= j < first + 4}
        if one.own_key is not None:
            placed.add(row + one.own_key)
        ranked = sorted(seen, key=lambda j: -float(scores[j]))
        found = []
        for top in TOPS:
            kept = placed | set(ranked[:top])
            rest = [j for j in seen if j not in kept]
            part = torch.tensor([float(p[j] * (values[j] - out).norm()) for j in rest], dtype=torch.float64)
            spread = len(rest) * float(part.std(correction=0)) if rest else 0.0
            n = min(max(round(factor * spread), FEWEST), len(rest))
            error = (factor * spread) ** 2 * (1 / n - 1 / len(rest)) if rest else 0.0
            found.append((error + n + len(kept), kept, n))
        return min(found, key=lambda one: one[0])[1:]

    @pytest.mark.parametrize("family", ["bert", "llama", "gpt_oss", "gemma2"])
    @pytest.mark.parametrize("side", ["right", "left", "none"])
    def test_each_query_takes_what_it_should(self, family, side):
        """Kept and drawn keys of every query, against plain Python: own token, sinks after padding, top keys."""
        model = tiny(family)
        inputs = text(model, side, 40)
        sizes = set()
        for one in calls(model, inputs):
            assert one.own_key == 0
            budgets = following(model, *FACTORS).layer(one.layer)
            streams = [[Stream(10 * b + h, 40, 40) for h in range(4)] for b in range(2)]
            rows = torch.tensor([11, 25, 33])
            scores = one.block_scores(rows).masked_fill(~dense.seen_keys(one, rows), -torch.inf)
            wanted = following_wanted(dense.Layer(one, budgets, streams), rows)
            best = scores.argsort(-1, descending=True).argsort(-1) < wanted.top[..., None]
            kept, n = (wanted.inside(40) | best) & (scores > -torch.inf), wanted.n
            for batch, head, place in product(range(2), range(4), range(3)):
                row = int(rows[place])
                if not inputs["attention_mask"][batch, row]:
                    continue
                first = 5 if side == "left" and batch == 1 else 0
                wanted, drawn = self.by_hand(one, batch, head, row, FACTORS[head], first)
                assert set(kept[batch, head, place].nonzero()[:, 0].tolist()) == wanted
                assert int(n[batch, head, place]) == drawn
                sizes.add((len(wanted), drawn))
        assert len(sizes) > 8  # many kinds of choices

    def test_queries_differ_and_heads_too(self):
        model = tiny("llama")
        with sampled_attention(model, following(model, *FACTORS), generator=0) as attended:
            model(**text(model, "none", 40))
        keys = attended.keys_per_query
        assert bool((keys.diff(dim=1) > 0).all())
        assert float(keys[0, 0]) == pytest.approx(
            sum(min(i + 1, 9) for i in range(40)) / 40
        )  # own, 4 sinks, 4 drawn

    def test_endless_weight_reads_everything(self):
        model = tiny("llama")
        inputs = text(model)
        with sampled_attention(model, following(model, *[1e9] * 4), generator=0) as attended:
            whole = answer(model, inputs)
        assert attended.share == 1.0
        torch.testing.assert_close(whole, answer(model, inputs), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("family", ["bert", "llama"])
    def test_padding_changes_nothing(self, family):
        """The padded text of a batch reads the keys that it reads alone, and with the same draws says the same. Padding
        on the right: the order of its own keys is that of the stream without those beyond its end."""
        model = tiny(family)
        inputs = text(model, "right", 40)
        budgets = following(model, *FACTORS)
        padded = calls(model, inputs)[0]
        alone = calls(model, {name: part[1:, :35] for name, part in inputs.items()})[0]
        streams = [[Stream(10 * b + h, 40, 40) for h in range(4)] for b in range(2)]
        short = [[Stream(10 + h, 40, 40) for h in range(4)]]
        for one in short[0]:
            one.order, one.start = one.order[one.order < 35], one.start[:35]
            one.start = one.start.clamp_max(34)
        rows = torch.arange(35)
        for one, other in zip(short[0], streams[1], strict=True):  # begin at the same key
            other.start[:35] = other.order.argsort()[one.order[one.start].long()]
        for name in (False, True):  # values that name their key: the same keys with the same weights
            if name:
                padded, alone = (
                    replace(one, value=torch.eye(one.key.shape[2]).expand(*one.key.shape[:2], -1, -1))
                    for one in (padded, alone)
                )
            read = dense.Layer(padded, budgets.layer(0), streams).block(rows)
            again = dense.Layer(alone, budgets.layer(0), short).block(rows)
            assert torch.equal(read.seen[1], again.seen[0])
            assert torch.equal(read.distinct[1], again.distinct[0])
            size = again.output.shape[-1]
            torch.testing.assert_close(read.output[1, ..., :size], again.output[0], rtol=1e-4, atol=1e-5)
            assert not bool(read.output[1, ..., size:].any())

    def test_padding_on_the_left_counts_the_same(self):
        model = tiny("llama")
        inputs = text(model, "left", 40)
        position = (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)
        counts = []
        for given in (
            {**inputs, "position_ids": position},
            {"input_ids": inputs["input_ids"][:1]},
            {"input_ids": inputs["input_ids"][1:, 5:]},
        ):
            attended = sampled.Attended.nothing(2, 4)
            for one in calls(model, given):
                sampled_output(one, following(model, *FACTORS).layer(one.layer), 0, attended=attended)
            counts.append(attended.keys)
        assert float((counts[0] - counts[1] - counts[2]).abs().max()) <= 1  # up to rounding

    @pytest.mark.parametrize("per_query", [False, True])
    @pytest.mark.parametrize("family", ["llama", "gpt_oss", "t5"])
    def test_in_blocks_of_any_size_and_beside_other_heads(self, family, per_query, monkeypatch):
        """The draws do not change, nor those of heads that follow nothing."""
        model = tiny(family)
        for one in calls(model, text(model, "right", 40)):
            follow = following(model, *FACTORS).layer(one.layer)
            mixed = [
                follow[0],
                HeadBudget(one.layer, 1, keeping(Kept(sinks=1)), 5),
                follow[2],
                HeadBudget(one.layer, 3),
            ]
            monkeypatch.undo()
            first = sampled_output(one, mixed, 5, per_query=per_query)
            scale = float(first.abs().max())
            monkeypatch.setattr(call, "BLOCK", 1)
            again = sampled_output(one, mixed, 5, per_query=per_query)
            assert torch.allclose(first, again, rtol=0, atol=1e-5 * scale)
            monkeypatch.undo()
            every = sampled_output(one, follow, 5, per_query=per_query)
            for head in (0, 2):
                assert torch.allclose(first[:, :, head], every[:, :, head], rtol=0, atol=1e-5 * scale)

    def test_a_generated_token_follows_too(self):
        model = tiny("llama")
        inputs = text(model, "left", 40)
        with sampled_attention(model, following(model, *FACTORS), generator=0) as attended:
            model.generate(**inputs, **WRITING)
        assert attended.forward_calls == [8, 8]
        assert bool((attended.keys_per_query.diff(dim=1) > 0).all())


WRITING = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}


class TestGenerate:
    @pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "t5"])
    def test_with_every_key_it_writes_what_the_model_writes(self, family):
        model = tiny(family)
        inputs = text(model, "left")
        inputs.pop("decoder_input_ids", None)
        full = model.generate(**inputs, **WRITING)
        with sampled_attention(model, uniform(model, 0, top=1000), generator=0):
            assert torch.equal(model.generate(**inputs, **WRITING), full)

    def test_with_few_keys_it_reads_few(self):
        model = tiny("llama")
        inputs = text(model, "left", 40)

        def write(seed: int) -> Tensor:
            with sampled_attention(model, uniform(model, 6, own=True, sinks=1), generator=seed) as attended:
                tokens = model.generate(**inputs, **WRITING)
            assert attended.forward_calls == [8, 8]
            assert float(attended.keys_per_query.max()) <= 8
            return tokens

        tokens = write(0)
        assert tokens.shape == (2, 48)
        assert torch.equal(write(0), tokens)

    def test_a_cache_of_fixed_size(self):
        model = tiny("llama")
        inputs = text(model, "left")
        settings = {**WRITING, "cache_implementation": "static", "disable_compile": True}
        with sampled_attention(model, uniform(model, 0, own=True, sinks=2, window=3), generator=0):
            fixed = model.generate(**inputs, **settings)
            grown = model.generate(**inputs, **WRITING)
        assert torch.equal(fixed, grown)
