"""Every family is observed exactly, sees its own masks, and is afterwards as it was."""

import copy
import inspect
import weakref
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from attnlimit.errors import InputError, MissingExtra, ModelNotSupported
from attnlimit.models import attention_layers, check_model, load, observe
from attnlimit.models.see import call
from attnlimit.models.see.interface import attend
from attnlimit.models.see.layers import notes
from attnlimit.models.see.masks import RuleMask, causal, lazy_mask
from tests.versions import need_t5, since

SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", SMALL),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", {**SMALL, "pad_token_id": 1}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**SMALL, "embedding_size": 32}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {**SMALL, "num_hidden_layers": 4, "local_attention": 6, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "big_bird": ("BigBirdConfig", "BigBirdForMaskedLM", {**SMALL, "attention_type": "original_full"}),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", SMALL),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**SMALL, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", GROUPED),
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
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            **GROUPED,
            "sliding_window": 4,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", {**T5, "decoder_start_token_id": 0}),
}
DECODERS = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt_oss", "t5")


def build(config: str, model: str, settings: dict[str, Any]) -> Any:
    """A model with random weights large enough that scores differ, from a seed of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = getattr(transformers, config)(**settings)
        if hasattr(settings, "initializer_range"):
            settings.initializer_range = 0.4
        return getattr(transformers, model)(settings).eval().requires_grad_(False)


def tiny(family: str) -> Any:
    if family == "t5":
        need_t5()
    return build(*FAMILIES[family])


def batch(side: str = "right", length: int = 12) -> dict[str, Tensor]:
    """Two sequences, the second with four padded places on one side, or none."""
    ids = torch.randint(5, 100, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if side != "none":
        mask[1, slice(-4, None) if side == "right" else slice(0, 4)] = 0
    return {"input_ids": ids, "attention_mask": mask}


def inputs_for(model: Any, side: str) -> dict[str, Tensor]:
    inputs = batch(side)
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"][:, 2:9]
    return inputs


def in_order(output: Any, what: str) -> list[Tensor]:
    """The model's own hidden states or weights, in the order of `attention_layers`."""
    if "encoder_last_hidden_state" not in output:
        return list(output[what])
    if what == "hidden_states":
        return [*output.encoder_hidden_states, *output.decoder_hidden_states]
    pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
    return [*output.encoder_attentions, *(weights for pair in pairs for weights in pair)]


def weights_of(one: call.Call) -> Tensor:
    """(B, Hq, Lq, Lk): softmax over the scores that the call reports, sink included and left out."""
    rows = slice(None)
    found = torch.stack(
        [torch.stack([one.scores(b, h, rows) for h in range(one.heads)]) for b in range(one.query.shape[0])]
    )
    if one.sink is None:
        return found.softmax(-1)
    sink = one.sink[:, None, None].expand(*found.shape[:-1], 1)
    return torch.cat([found, sink.to(found)], -1).softmax(-1)[..., :-1]


@pytest.mark.parametrize("side", ["right", "left", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_layer_attends_as_the_model_itself(family, side, monkeypatch) -> None:
    # The mask must stay a rule: no family may need the n×n matrix.
    monkeypatch.setattr(RuleMask, "dense", lambda self: pytest.fail("the mask became a matrix"))
    model = tiny(family)
    inputs = inputs_for(model, side)
    alone = model(**inputs, output_hidden_states=True)
    seen: list[Tensor] = []
    outputs: list[Tensor] = []

    def handler(one: call.Call) -> None:
        seen.append(weights_of(one))
        values = one.value.repeat_interleave(one.groups, 1)
        outputs.append((seen[-1] @ values).transpose(1, 2) - one.output())

    with observe(model, handler) as observed:
        result = model(**inputs, output_hidden_states=True)
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = "eager"
    own = in_order(model(**inputs, output_attentions=True), "attentions")

    assert observed.calls == [1] * len(own) == [1] * len(seen)
    real = inputs["attention_mask"].bool()
    pairs = zip(in_order(result, "hidden_states"), in_order(alone, "hidden_states"), strict=True)
    for ours, theirs in pairs:
        keep = real if ours.shape[1] == real.shape[1] else slice(None)
        torch.testing.assert_close(ours[keep], theirs[keep], rtol=1e-4, atol=1e-4)
    for ours, theirs, difference in zip(seen, own, outputs, strict=True):
        rows = ours.shape[2]
        keep = real if rows == real.shape[1] else torch.ones(2, rows, dtype=torch.bool)
        torch.testing.assert_close(ours.mT[0, ..., keep[0]], theirs.mT[0, ..., keep[0]], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.mT[1, ..., keep[1]], theirs.mT[1, ..., keep[1]], rtol=1e-4, atol=1e-5)
        assert difference[keep].abs().max() < 1e-5


@pytest.mark.parametrize("family", ["bert", "mistral", "gemma2", "gpt_oss", "t5"])
def test_output_in_blocks_is_the_output(family, monkeypatch) -> None:
    model = tiny(family)
    inputs = inputs_for(model, "left")
    whole: list[Tensor] = []
    with observe(model, lambda one: whole.append(one.output())):
        model(**inputs)
    monkeypatch.setattr(call, "BLOCK", 200)
    parts: list[Tensor] = []
    with observe(model, lambda one: parts.append(one.output())):
        model(**inputs)
    for ours, theirs in zip(parts, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["mistral", "t5"])
def test_some_rows_and_keys_are_those_of_the_whole(family) -> None:
    model = tiny(family)
    checked = []

    def handler(one: call.Call) -> None:
        every = one.scores(1, 3, slice(None))
        hidden = one.hidden(1, slice(None))
        assert torch.equal(every == -torch.inf, hidden)
        rows, keys = torch.tensor([5, 0, 3]), torch.tensor([6, 1])
        own = torch.tensor([[0, 1], [2, 2], [6, 4]])
        torch.testing.assert_close(one.scores(1, 3, rows), every[rows])
        torch.testing.assert_close(one.scores(1, 3, rows, keys), every[rows][:, keys])
        torch.testing.assert_close(one.scores(1, 3, rows, own), every[rows].gather(1, own))
        assert torch.equal(one.hidden(1, rows, keys=own), hidden[rows].gather(1, own))
        torch.testing.assert_close(one.scores(1, 3, slice(1, 4), slice(2, 5)), every[1:4, 2:5])
        checked.append(one.layer)

    with observe(model, handler):
        model(**inputs_for(model, "left"))
    assert checked == sorted(checked)
    assert len(checked) == len(attention_layers(model))


def test_a_window_and_padding_hide_what_they_should() -> None:
    model = tiny("mistral")  # a query sees itself and three keys before it
    hidden: list[Tensor] = []
    with observe(model, lambda one: hidden.append(one.hidden(1, slice(None)))):
        model(**batch("left"))
    i, j = torch.arange(12)[:, None], torch.arange(12)
    assert torch.equal(~hidden[0], (j <= i) & (j > i - 4) & (j >= 4))


def test_padding_and_own_keys_are_told() -> None:
    model = tiny("t5")
    inputs = inputs_for(model, "right")
    told: dict[str, tuple[Any, Any]] = {}
    with observe(model, lambda one: told.update({one.name: (one.real, one.own_key)})):
        model(**inputs)
    real, own = told["encoder.block.0.layer.0.SelfAttention"]
    assert torch.equal(real, inputs["attention_mask"].bool())
    assert own == 0
    assert told["decoder.block.0.layer.0.SelfAttention"] == (None, 0)
    assert told["decoder.block.0.layer.1.EncDecAttention"] == (None, None)


def test_layers_are_listed_in_order() -> None:
    layers = attention_layers(tiny("t5"))
    assert [layer.name.split(".")[0] for layer in layers] == ["encoder"] * 2 + ["decoder"] * 4
    assert [layer.index for layer in layers] == list(range(6))


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_have_their_shapes_before_they_are_called(family) -> None:
    model = tiny(family)
    before = attention_layers(model)
    with observe(model, lambda one: None) as observed:
        model(**inputs_for(model, "none"))
    assert observed.layers == before
    assert (before[0].heads, before[0].head_dim) == (4, 8)
    assert before[0].key_heads == (2 if "num_key_value_heads" in FAMILIES[family][2] else 4)


def test_the_handlers_output_is_the_layers() -> None:
    model = tiny("bert")
    inputs = batch()
    kept: dict[str, Tensor] = {}
    output_layer = model.bert.encoder.layer[1].attention.output.dense
    hook = output_layer.register_forward_pre_hook(lambda module, args: kept.update(got=args[0]))
    given = torch.randn(2, 12, 4, 8, generator=torch.Generator().manual_seed(2))
    with observe(model, lambda one: given if one.layer == 1 else None):
        model(**inputs)
    hook.remove()
    assert torch.equal(kept["got"], given.flatten(2))


def test_an_output_of_the_wrong_shape_is_refused() -> None:
    model = tiny("bert")
    with (
        pytest.raises(InputError, match=r"layer 0 .*\(2, 12, 4, 8\), got \(2, 4, 12, 8\)"),
        observe(model, lambda one: one.output().transpose(1, 2)),
    ):
        model(**batch())
    with pytest.raises(InputError, match=r"got float"), observe(model, lambda one: 1.0):
        model(**batch())


def state(model: Any) -> list[Any]:
    """What observe could leave behind: settings of every config, hooks and instance forwards."""
    return [
        [copy.deepcopy(vars(module.config)) for module in model.modules() if hasattr(module, "config")],
        [len(module._forward_hooks) for module in model.modules()],
        ["forward" in vars(module) for module in model.modules()],
    ]


@pytest.mark.parametrize("family", ["bert", "big_bird", "t5", "gemma2"])
def test_the_model_is_as_it_was_also_after_an_error(family) -> None:
    model = tiny(family)
    inputs = inputs_for(model, "right")
    logits, before = model(**inputs).logits, state(model)
    with observe(model, lambda one: torch.zeros_like(one.output())):
        changed = model(**inputs).logits
    assert not torch.allclose(changed, logits)
    assert state(model) == before
    assert torch.equal(model(**inputs).logits, logits)

    def broken(one: call.Call) -> None:
        raise RuntimeError("handler broke")

    with pytest.raises(RuntimeError, match="handler broke"), observe(model, broken):
        model(**inputs)
    assert state(model) == before
    assert torch.equal(model(**inputs).logits, logits)


def test_one_handler_at_a_time_but_two_models_side_by_side() -> None:
    model, other = tiny("bert"), tiny("gpt2")
    with observe(model, lambda one: None) as outer:
        with (
            pytest.raises(InputError, match=r"BertForMaskedLM is already inside observe"),
            observe(model, lambda one: None),
        ):
            pass
        with observe(other, lambda one: None) as inner:
            other(**batch())
        model(**batch())
    assert (outer.calls, inner.calls) == ([1, 1], [1, 1])


def test_a_model_that_shares_the_config_runs_as_it_is() -> None:
    model = tiny("bert")
    with torch.random.fork_rng():
        second = transformers.BertForMaskedLM(model.config).eval()  # the same config object in two models
    alone = second(**batch()).logits
    with observe(model, lambda one: torch.zeros_like(one.output())) as observed:
        beside = second(**batch()).logits
        model(**batch())
    torch.testing.assert_close(beside, alone)
    assert observed.calls == [1, 1]


def test_nothing_but_the_current_layer_is_held() -> None:
    model = tiny("llama")
    calls: list[weakref.ref[call.Call]] = []

    def handler(one: call.Call) -> None:
        assert all(earlier() is None for earlier in calls)
        calls.append(weakref.ref(one))

    with observe(model, handler):
        model(**batch(), use_cache=False)
    assert len(calls) == 2


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_generation_works_inside(family, cache) -> None:
    model = tiny(family)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    if cache is not None:
        options["cache_implementation"] = cache
    own: list[tuple[int, int | None]] = []
    alone = model.generate(**batch("left"), **options)
    with observe(model, lambda one: own.append((one.query.shape[2], one.own_key))) as observed:
        inside = model.generate(**batch("left"), **options)
    assert torch.equal(inside, alone)
    expected = [1, 1, 5, 5, 5, 5] if family == "t5" else [5, 5]
    assert observed.calls == expected
    if family in ("gpt2", "llama"):  # without a window, query t's own key is key t
        assert own[::2] == own[1::2] == [(12, 0), (1, 12), (1, 13), (1, 14), (1, 15)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", "gemma2"])
def test_half_precision_scores_are_float32(family, dtype) -> None:
    model = tiny(family).to(dtype)
    dtypes = set()

    def handler(one: call.Call) -> None:
        s = one.scores(1, 2, slice(None))
        dtypes.add((s.dtype, one.output().dtype))
        exact = one.scale * (one.query[1, 2].double() @ one.key[1, 2 // one.groups].double().T)
        if one.softcap is not None:
            exact = one.softcap * torch.tanh(exact / one.softcap)
        seen = ~one.hidden(1, slice(None))
        torch.testing.assert_close(s[seen].double(), exact[seen], rtol=1e-4, atol=1e-4)

    with observe(model, handler):
        model(**batch())
    assert dtypes == {(torch.float32, dtype)}
    assert check_model(model, **batch()) < 0.03


def test_masks_given_as_matrices_are_honoured() -> None:
    model = tiny("bert")
    ids = batch()["input_ids"]
    seen = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(3)) > 0.4
    seen |= torch.eye(12, dtype=torch.bool)
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    added = added + torch.linspace(0, 1, 12) * seen
    for mask in (seen, added):
        alone = model(input_ids=ids, attention_mask=mask).logits
        hidden: list[Tensor] = []
        with observe(model, lambda one, hidden=hidden: hidden.append(one.hidden(1, slice(None)))):
            inside = model(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(inside, alone, rtol=1e-4, atol=1e-4)
        assert torch.equal(hidden[0], ~seen[1, 0])


def masks() -> dict[str, dict[str, Any]]:
    ids = torch.tensor([[0, 0, 1, 1, 1, -1, -1, 2]] * 2)
    return {
        "causal": {},
        "padded": {"attention_mask": torch.tensor([[1] * 8, [0] * 3 + [1] * 5])},
        "packed": {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]] * 2)},
        "blocks": {"block_sequence_ids": ids},
        "or": {"or_mask_function": lambda b, h, q, k: (k < 2) & (b == 1)},
        "and": {"and_mask_function": lambda b, h, q, k: ids[b, q] == ids[b, k]},
    }


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("window", [None, 3])
def test_a_rule_is_the_mask_that_eager_attention_gets(name, window) -> None:
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    if name == "blocks":
        since("transformers", "5.9", "masks of blocks are made")
    model = tiny("mistral")
    config = copy.deepcopy(model.config)
    create = create_causal_mask
    if window is not None:
        config.sliding_window, create = window, create_sliding_window_causal_mask
    arguments = {"attention_mask": None, "past_key_values": None, **masks()[name]}
    if "cache_position" in inspect.signature(create).parameters:  # transformers 5.3 wants it
        arguments["cache_position"] = torch.arange(8)
    config._attn_implementation = "eager"
    eager = create(config, torch.zeros(2, 8, 32), **arguments)
    with observe(model, lambda one: None):
        config._attn_implementation = "attnlimit"
        rule = create(config, torch.zeros(2, 8, 32), **arguments)
        model(**batch())
    assert isinstance(rule, RuleMask)
    assert torch.equal(rule.dense(), eager)
    # A model that computes with its mask gets the matrix.
    assert torch.equal(rule + 1, eager + 1)
    assert torch.equal(rule[:, :, 2], eager[:, :, 2])
    assert torch.equal(torch.where(rule < 0, 1, 0), torch.where(eager < 0, 1, 0))
    assert torch.equal(rule.to(torch.float64), eager.double())
    assert torch.equal(rule.to(dtype=torch.float64), eager.double())
    assert torch.equal(rule.transpose(2, 3), eager.mT)
    assert rule.to("cpu") is rule.contiguous() is rule
    assert lazy_mask(2, 8, 8, attention_mask=rule) is rule
    assert copy.copy(rule).shape == rule.shape == eager.shape


OFF_THE_INTERFACE: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "longformer": (
        "LongformerConfig",
        "LongformerModel",
        {**SMALL, "attention_window": 4},
        "chunks.*BigBird",
    ),
    "deberta": ("DebertaConfig", "DebertaModel", SMALL, "disentangled.*ELECTRA"),
    "deberta-v2": ("DebertaV2Config", "DebertaV2Model", SMALL, "disentangled.*ELECTRA"),
    "gptj": ("GPTJConfig", "GPTJModel", {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4}, "Pythia"),
    "falcon": (
        "FalconConfig",
        "FalconModel",
        {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
        "Llama",
    ),
    "mpt": ("MptConfig", "MptModel", {"d_model": 32, "n_heads": 4, "n_layers": 1}, "ALiBi.*Llama"),
    "bloom": ("BloomConfig", "BloomModel", {"hidden_size": 32, "n_layer": 1, "n_head": 4}, "ALiBi.*GPT-NeoX"),
    "mamba": (
        "MambaConfig",
        "MambaModel",
        {"hidden_size": 32, "num_hidden_layers": 1},
        "no softmax attention",
    ),
    "rwkv": ("RwkvConfig", "RwkvModel", {"hidden_size": 32, "num_hidden_layers": 2}, "no softmax attention"),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # DeBERTa's own file, at import
@pytest.mark.parametrize("family", OFF_THE_INTERFACE)
def test_models_out_of_sight_are_refused_by_name(family) -> None:
    config, name, settings, advice = OFF_THE_INTERFACE[family]
    model = build(config, name, {**settings, "vocab_size": 100})
    with (
        pytest.raises(ModelNotSupported, match=rf"{name} \(model type '{family}'\).*{advice}"),
        observe(model, lambda one: None),
    ):
        pytest.fail("a model that cannot be seen was let in")


def test_a_model_nobody_named_is_found_out_by_calling() -> None:
    model = build("MPNetConfig", "MPNetModel", {**SMALL, "pad_token_id": 1})
    before = state(model)
    with (
        pytest.raises(ModelNotSupported, match=r"MPNetModel .*'mpnet'.* none of its layers .*It was run"),
        observe(model, lambda one: None),
    ):
        model(**batch())  # raises at once, before a long run is wasted
    assert state(model) == before


def test_a_block_in_which_layers_were_not_called_is_refused() -> None:
    model = tiny("t5")
    with (
        pytest.raises(ModelNotSupported, match=r"none of its layers .*not run inside the block"),
        observe(model, lambda one: None),
    ):
        pass
    first = r"4 of its 6 layers, first decoder\.block\.0\.layer\.0\.SelfAttention, never .*get_encoder"
    with pytest.raises(ModelNotSupported, match=first), observe(model, lambda one: None):
        model.get_encoder()(**batch())
    with observe(model.get_encoder(), lambda one: None) as observed:
        model.get_encoder()(**batch())
    assert observed.calls == [1, 1]


def test_block_sparse_big_bird_is_refused() -> None:
    model = build("BigBirdConfig", "BigBirdForMaskedLM", {**SMALL, "attention_type": "block_sparse"})
    with (
        pytest.raises(ModelNotSupported, match=r"BigBirdForMaskedLM .*block_sparse.*original_full"),
        observe(model, lambda one: None),
    ):
        pass
    with torch.random.fork_rng():  # it builds new layers before it takes over the weights
        model.bert.set_attention_type("original_full")
    assert check_model(model, **batch()) < 1e-5


def test_big_bird_decodes_with_its_cache() -> None:
    settings = {**SMALL, "attention_type": "original_full", "is_decoder": True}
    model = build("BigBirdConfig", "BigBirdForCausalLM", settings)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    alone = model.generate(**batch("left"), **options)
    with observe(model, lambda one: None) as observed:
        inside = model.generate(**batch("left"), **options)
    assert torch.equal(inside, alone)
    assert observed.calls == [4, 4]


def test_hybrid_models_say_what_is_not_seen() -> None:
    settings = {
        **GROUPED,
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    }
    model = build("Qwen3NextConfig", "Qwen3NextModel", settings)
    with observe(model, lambda one: None) as observed:
        model(**batch())
    assert len(observed.layers) == 1
    told = []
    model.save_pretrained("hybrid")
    assert load("hybrid", task="encoder", note=told.append).notes == tuple(told)
    assert "Only 1 of 4 layers are softmax attention" in told[0]


def test_an_encoder_that_attends_in_blocks_is_said_not_to_be_seen() -> None:
    """LongT5's encoder attends by itself, its decoder through the interface; all of T5 is seen."""
    need_t5()
    long, plain = (build(f"{name}Config", f"{name}Model", T5) for name in ("LongT5", "T5"))
    assert "Only 4 of 6 layers" in notes(long)[0]
    assert notes(plain) == notes(plain.encoder) == ()


def test_shared_layers_are_said_to_be_shared() -> None:
    settings = {**SMALL, "embedding_size": 16}
    model = build("AlbertConfig", "AlbertModel", settings)
    with observe(model, lambda one: None) as observed:
        model(**batch())
    assert observed.calls == [2]
    assert "serve all 2 layers" in notes(model)[0]


@pytest.mark.parametrize("name", ["indices", "block_indices", "cache"])
def test_attention_to_selected_keys_is_refused(name) -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ModelNotSupported, match=rf"Identity passes '{name}'"):
        attend(torch.nn.Identity(), q, q, q, None, **{name: torch.zeros(1)})


def test_attention_without_a_mask_goes_by_the_flag() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0)).unbind(0)
    for flag in (True, False):
        ours, _ = attend(torch.nn.Identity(), q, k, v, None, is_causal=flag)
        own = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=flag)
        torch.testing.assert_close(ours, own.transpose(1, 2))


def test_heads_that_do_not_divide_are_refused() -> None:
    q, k = torch.zeros(1, 3, 5, 4), torch.zeros(1, 2, 5, 4)
    with pytest.raises(ModelNotSupported, match="3 query heads on 2 key heads"):
        attend(torch.nn.Identity(), q, k, k, None)


@pytest.mark.parametrize("which", ["query", "key", "value"])
def test_numbers_that_are_none_are_refused_where_they_come_up(which) -> None:
    model = tiny("bert")
    projection = getattr(model.bert.encoder.layer[1].attention.self, which)
    projection.bias.data[3] = torch.nan if which == "value" else torch.inf
    words = rf"bert\.encoder\.layer\.1\.attention\.self attends with {which[:3]}\w+ that are nan or infinite.*float32\. Copy"
    with pytest.raises(InputError, match=words), observe(model, lambda one: None):
        model(**batch())


def test_only_modules_can_be_observed() -> None:
    with (
        pytest.raises(InputError, match="must be a torch module from transformers, got str"),
        observe("bert", print),
    ):
        pass


def test_without_transformers_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with (
        pytest.raises(MissingExtra, match=r"pip install 'attnlimit\[models\]'"),
        observe(torch.nn.Identity(), lambda one: None),
    ):
        pass


def test_a_model_whose_calls_do_not_tell_the_truth_is_found_out(monkeypatch) -> None:
    model = tiny("gpt2")
    assert check_model(model, **batch()) < 1e-6
    own = call.Call.output
    monkeypatch.setattr(call.Call, "output", lambda self: own(self) * 1.01)
    with pytest.raises(ModelNotSupported, match="GPT2LMHeadModel computes its attention otherwise"):
        check_model(model, **batch())


@pytest.mark.parametrize("family", ["bert", "big_bird", "llama"])
def test_models_spread_over_devices_work(family) -> None:
    from accelerate import dispatch_model

    model = tiny(family)
    alone = model(**batch()).logits
    spread = {name: "cpu" for name, _ in model.named_children()}
    model = dispatch_model(model, spread, main_device="cpu", force_hooks=True)
    with observe(model, lambda one: None) as observed:
        inside = model(**batch()).logits
    assert observed.calls == [1, 1]
    real = batch()["attention_mask"].bool()
    torch.testing.assert_close(inside[real], alone[real], rtol=1e-4, atol=1e-4)


def test_a_mask_becomes_a_matrix_only_up_to_a_size():
    small = RuleMask(causal, (1, 1, 4, 4))
    assert small.sum().shape == ()  # as of a tensor
    with pytest.raises(AttributeError, match="A mask has no attribute 'flavour'"):
        _ = small.flavour
    large = RuleMask(causal, (1, 1, 100_000, 100_000))
    with pytest.raises(ModelNotSupported, match=r"1 × 100,000 × 100,000 entries .* run it on shorter texts"):
        large.sum()
    assert large.seen(torch.tensor(0), 0, torch.tensor([99_999]), torch.tensor([0])).tolist() == [True]
