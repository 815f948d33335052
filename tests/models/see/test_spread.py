"""Models larger than the memory: spread over memory and disk, analysed layer by layer."""

from __future__ import annotations

import random
import string
import sys
from pathlib import Path

import pytest
import torch

from attnlimit.errors import ModelNotSupported
from attnlimit.models.analyse.analyze import Reading, analyze
from attnlimit.models.see import memory
from attnlimit.models.see.load import Loaded, load
from attnlimit.models.see.memory import available_memory
from tests.versions import since

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
TEXT = " ".join(random.Random(0).choices(string.ascii_lowercase, k=300))
READING = Reading(tokens=32, passages=1, queries=4, answer=0)


def saved(folder: Path, hidden: int, layers: int) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=4 * hidden, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="9MB")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def resident(name: str) -> int:
    """Bytes, now (VmRSS) or at most (VmHWM)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.split(f"{name}:")[1].split()[0])


def grown(folder: Path, device: str | None) -> tuple[int, Loaded, list[object]]:
    """How much more than before was resident at one time while a model was loaded and analysed."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak is counted anew
    before = resident("VmRSS")
    loaded = load(folder, device=device)
    heads = analyze(loaded, [TEXT], reading=READING).to_dict()["heads"]
    return resident("VmHWM") - before, loaded, heads


def leave(room: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnlimit.models.see.load.available_memory", lambda device: room)


def need_disk() -> None:
    since("transformers", "5.13", "a model that is wholly on disk is fetched")


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system what is resident")
@pytest.mark.parametrize("room", [20e6, 35e6])
def test_a_model_larger_than_the_memory_is_analysed_layer_by_layer(room, tmp_path, monkeypatch) -> None:
    """Weights of 126 MB where 20 MB are free, so that all stay on disk, or 35 MB, so that the embedding does not: the same
    numbers, and never three of its eight layers in memory."""
    leave(room, monkeypatch)
    if room == 20e6:
        need_disk()
    large, small = saved(tmp_path / "large", 512, 8), saved(tmp_path / "small", 32, 2)
    size = sum(file.stat().st_size for file in large.glob("*.safetensors"))
    grown(small, "auto")  # what is made once, as compiled loops, is made
    part, spread, heads = grown(large, "auto")
    whole, loaded, same = grown(large, None)
    assert spread.on_disk
    assert not loaded.on_disk
    assert heads == same
    assert part < 0.375 * size
    assert whole > 0.9 * size


@pytest.mark.parametrize("room", [1e5, 4e5])
def test_weights_on_disk_have_no_gradients(room, tmp_path, monkeypatch) -> None:
    leave(room, monkeypatch)
    if room == 1e5:
        need_disk()
    loaded = load(saved(tmp_path / "small", 64, 4), device="auto")
    assert loaded.on_disk
    assert loaded.device == torch.device("cpu")
    with pytest.raises(ModelNotSupported, match=r"left on disk.*analyse without the answer \(--answer off\)"):
        analyze(loaded, [TEXT], reading=Reading(tokens=32, passages=1, queries=4))
    assert available_memory(torch.device("cpu")) > 0


def test_a_model_that_would_never_leave_the_disk_is_refused(tmp_path, monkeypatch) -> None:
    leave(1e5, monkeypatch)
    monkeypatch.setattr("transformers.modeling_utils.accelerate_dispatch", lambda *_: None)  # as before 5.13
    with pytest.raises(ModelNotSupported, match=r"No layer .* wholly on disk.*install transformers 5\.13"):
        load(saved(tmp_path / "small", 64, 4), device="auto")


@pytest.mark.parametrize(
    "problem", [MemoryError(), RuntimeError("unable to mmap: Cannot allocate memory (12)")]
)
def test_a_model_that_does_not_fit_is_told_the_way_out(problem, tmp_path, monkeypatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise problem

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", full)
    with pytest.raises(
        ModelNotSupported,
        match=r"does not fit the memory: spread it .*\(--device auto; a GGUF file must fit once",
    ):
        load(saved(tmp_path / "small", 32, 2))


@pytest.mark.parametrize(
    ("own", "top", "names", "prefix"),
    [
        ("5:cpu:/x\n0::/jobs/7\n", "", ("memory.max", "memory.current"), ""),
        (
            "5:cpu:/x\n4:hugetlb,memory:/jobs/7\n0::/\n",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_",
        ),
    ],
)
def test_what_the_limits_of_containers_and_jobs_leave(own, top, names, prefix, tmp_path, monkeypatch) -> None:
    """The job has no limit of its own (as "max" in the second version says), what is around it has; what was read of files,
    30 bytes, gives way."""
    groups = tmp_path / "groups"
    for folder, limit in ((groups / top / "jobs", "1000"), (groups / top / "jobs" / "7", "max")):
        folder.mkdir(parents=True)
        for name, value in zip(names, (limit, "900"), strict=True):
            (folder / name).write_text(value + "\n")
        told = f"active_file 1\n{prefix}inactive_file 10\n{prefix}active_file 20\nworkingset_refault_file 5\n"
        (folder / "memory.stat").write_text(told.removeprefix("" if prefix else "active_file 1\n"))
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(memory, "GROUPS", groups)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    assert available_memory(torch.device("cpu")) == 130
