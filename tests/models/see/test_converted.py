"""A GGUF file is converted once: what is kept is the same model, whole, and made again when it is not."""

import os
import time
from pathlib import Path

import gguf
import pytest
import torch
import transformers

from attnlimit.errors import ModelNotSupported
from attnlimit.files.cache import cache_folder
from attnlimit.models import load
from attnlimit.models.see import converted
from tests.versions import since

IDS = torch.arange(5, 25)[None]


@pytest.fixture
def cache(monkeypatch) -> Path:
    monkeypatch.setenv("ATTNLIMIT_CACHE", "cache")
    return Path("cache", "gguf")


def logits(loaded) -> torch.Tensor:
    return loaded.model(input_ids=IDS).logits


def test_what_is_kept_is_the_same_model(tiny_gguf, cache) -> None:
    said: list[str] = []
    first = load(tiny_gguf, note=said.append)
    (entry,) = cache.iterdir()
    assert said == [f"tiny.gguf is GGUF: it is converted once, which can take a minute, and kept in {entry}."]
    assert {file.suffix for file in entry.iterdir()} == {".json", ".safetensors"}
    again = load(tiny_gguf, note=said.append)
    assert len(said) == 1
    assert torch.equal(logits(first), logits(again))
    assert (again.name, again.kind, again.model.dtype) == (first.name, first.kind, first.model.dtype)
    assert type(again.model) is type(first.model)
    assert again.model.config.to_dict().keys() == first.model.config.to_dict().keys()
    assert not again.model.training
    assert not any(weight.requires_grad for weight in again.model.parameters())
    assert again.tokenizer is None
    assert again.tokenizer_problem == first.tokenizer_problem


def test_the_packaged_language_model_is_kept_with_its_tokenizer(smollm) -> None:
    said: list[str] = []
    again = load("smollm2", note=said.append)
    assert (said, again.kind) == ([], "causal-lm")
    text = "<|im_start|>user\nHow many keys does a head need?<|im_end|>"
    ids = smollm.need_tokenizer()(text, return_tensors="pt")
    assert again.need_tokenizer()(text)["input_ids"] == ids["input_ids"][0].tolist()
    assert again.tokenizer.special_tokens_map == smollm.tokenizer.special_tokens_map
    assert again.tokenizer.chat_template == smollm.tokenizer.chat_template
    assert torch.equal(again.model(**ids).logits, smollm.model(**ids).logits)


@pytest.mark.parametrize("same", [True, False])
def test_a_tokenizer_that_comes_back_another_is_not_kept(same, tmp_path, monkeypatch) -> None:
    class Tokenizer:
        def __init__(self, first: int) -> None:
            self.first = first

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [self.first, *map(ord, text)]}

        def save_pretrained(self, folder: Path) -> tuple[str, ...]:
            (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
            return str(folder / "tokenizer.json"), str(folder / "added_tokens.json")

    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Tokenizer(1 if same else 2)
    )
    converted._keep_tokenizer(Tokenizer(1), tmp_path)
    assert (tmp_path / "tokenizer.json").exists() == same


def test_dtype_task_and_file_each_have_an_entry(tiny_gguf, cache) -> None:
    whole = load(tiny_gguf)
    for _ in range(2):
        assert load(tiny_gguf, dtype="bfloat16").model.dtype == torch.bfloat16
        assert load(tiny_gguf, dtype=torch.bfloat16).model.dtype == torch.bfloat16
        assert load(tiny_gguf, task="encoder").kind == "encoder"
        assert len(list(cache.iterdir())) == 3
    os.utime(tiny_gguf, ns=(0, 0))
    assert torch.equal(logits(load(tiny_gguf)), logits(whole))
    assert len(list(cache.iterdir())) == 4


def test_a_default_dtype_is_not_kept_for_another(tiny_gguf, cache) -> None:
    since("transformers", "5.17", "a GGUF file comes in torch's default dtype")
    torch.set_default_dtype(torch.float64)
    try:
        assert load(tiny_gguf).model.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert load(tiny_gguf).model.dtype == torch.float32


def test_an_entry_that_does_not_fit_the_memory_stays(tiny_gguf, cache, monkeypatch) -> None:
    kind = type(load(tiny_gguf).model)
    (entry,) = cache.iterdir()

    def full(*given: object, **named: object) -> None:
        raise MemoryError

    with monkeypatch.context() as small:
        small.setattr(kind, "from_pretrained", full)
        with pytest.raises(ModelNotSupported, match="does not fit the memory"):
            load(tiny_gguf)
    assert entry.is_dir()
    said: list[str] = []
    load(tiny_gguf, note=said.append)
    assert said == []


@pytest.mark.parametrize("damage", ["short weights", "no weights", "no JSON", "another config", "tokenizer"])
def test_a_damaged_entry_is_made_again(tiny_gguf, cache, damage) -> None:
    first = load(tiny_gguf)
    (entry,) = cache.iterdir()
    weights, config = entry / "model.safetensors", entry / "config.json"
    if damage == "short weights":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "no weights":
        weights.unlink()
    elif damage == "tokenizer":
        (entry / "tokenizer.json").write_text("{")
    else:
        config.write_text("{" if damage == "no JSON" else "{}")
    said: list[str] = []
    assert torch.equal(logits(load(tiny_gguf, note=said.append)), logits(first))
    assert len(said) == 1
    assert torch.equal(logits(load(tiny_gguf, note=said.append)), logits(first))
    assert len(said) == 1
    assert list(cache.iterdir()) == [entry]


def test_a_folder_that_cannot_be_written_only_costs_time(tiny_gguf, cache) -> None:
    Path("cache").write_text("a file")
    said: list[str] = []
    for _ in range(2):
        assert logits(load(tiny_gguf, note=said.append)).isfinite().all()
    assert len(said) == 4
    assert "tiny.gguf could not be kept" in said[1]
    assert "ATTNLIMIT_CACHE" in said[1]


def test_who_comes_second_leaves_the_first_entry(tiny_gguf, cache) -> None:
    model = load(tiny_gguf).model
    (entry,) = cache.iterdir()
    before = (entry / "model.safetensors").stat().st_ino
    assert converted.keep(model, None, entry) == ""
    assert (entry / "model.safetensors").stat().st_ino == before
    assert list(cache.iterdir()) == [entry]


def test_an_interrupted_save_leaves_nothing(tiny_gguf, cache, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(tiny_gguf)
    assert not list(cache.iterdir())


def test_what_a_killed_process_left_is_removed_after_a_day(tiny_gguf, cache) -> None:
    old, new = cache / "a.partial", cache / "b.partial"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * converted.LEFT_BEHIND,) * 2)
    load(tiny_gguf)
    assert not old.exists()
    assert new.exists()


def test_weights_outside_memory_are_not_kept(cache) -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    assert "not in memory" in converted.keep(model, None, cache / "model")


def test_the_file_is_parsed_once(tiny_gguf, cache, monkeypatch) -> None:
    parsed: list[object] = []
    real = gguf.GGUFReader

    def reader(path: object) -> gguf.GGUFReader:
        parsed.append(path)
        return real(path)

    monkeypatch.setattr(gguf, "GGUFReader", reader)
    names = gguf.get_tensor_name_map
    load(tiny_gguf)
    assert len(parsed) == 1
    assert gguf.GGUFReader is reader
    assert gguf.get_tensor_name_map is names


@pytest.mark.parametrize("note", [None, lambda words: None])
def test_no_bar_outside_a_terminal(tiny_gguf, cache, capfd, note) -> None:
    load(tiny_gguf, note=note)
    assert capfd.readouterr().err == ""


def test_the_cache_folder_follows_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("ATTNLIMIT_CACHE", "~/own")
    assert cache_folder() == Path.home() / "own"
    monkeypatch.delenv("ATTNLIMIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder() == Path("/shared/attnlimit")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "attnlimit"
