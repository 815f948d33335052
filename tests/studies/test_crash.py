"""Studies, trainings, analyses and reports are killed with SIGKILL at random moments, and started again, until they end: what was
there stays, once and whole, and the end is bit for bit that of a run which nobody killed. `make kills` does so a thousand times."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlimit.files.tensors import read_tensors, write_tensors
from attnlimit.icl import Evaluation, LinearRegression, Optimizer, Saving, train
from attnlimit.studies import run_study, study_from

TIMES, SEED = int(os.environ.get("KILLS_TIMES", "1")), int(os.environ.get("KILLS_SEED", "5"))
TASKS = 60
Say = Callable[[int], None]


@dataclass(frozen=True)
class Work:
    """What a killed process was doing."""

    run: Callable[[Path, Say], object]
    """Into a folder; says how many things are safe there, so far."""
    look: Callable[[Path], dict[Any, bytes]]
    """The things that are there, found sound."""
    kills: int


# --- a study ------------------------------------------------------------------------------------------

STUDY = study_from(
    {"name": "p", "kind": "probe", "what": {"seconds": 0.01}, "grid": {"value": list(range(TASKS))}}
)


def stored(folder: Path) -> dict[bytes, bytes]:
    """Results, once SQLite has found the store sound."""
    if not (folder / "store.sqlite").exists():
        return {}
    connection = sqlite3.connect(folder / "store.sqlite")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'results'").fetchall():
            return {}  # killed before the tables were made
        found = connection.execute("SELECT id, result FROM results").fetchall()
        assert len(found) == len(dict(found))  # no row is doubled
        planned = connection.execute("SELECT count(*) FROM tasks").fetchone()[0]
        assert planned in (0, TASKS)  # a plan is there as a whole or not at all
        return dict(found)
    finally:
        connection.close()


def study(folder: Path, say: Say) -> None:
    run_study(STUDY, folder, report=lambda now: say(now.done))


# --- a training, an analysis, a report ----------------------------------------------------------------


def files(*names: str) -> Callable[[Path], dict[str, bytes]]:
    """What is in these files, once the first of them is there."""

    def content(path: Path) -> bytes:
        if path.suffix != ".safetensors":
            return path.read_bytes()
        tensors, header = read_tensors(path)  # whose bytes have no one order
        return repr([sorted(header.items()), [(key, one.tolist()) for key, one in tensors.items()]]).encode()

    def look(folder: Path) -> dict[str, bytes]:
        there = [name for name in names if (folder / names[0]).exists() and (folder / name).exists()]
        return {name: content(folder / name) for name in there}

    return look


def training(folder: Path, say: Say) -> None:
    folder.mkdir(exist_ok=True)
    made = train(
        LinearRegression(2),
        [4, 8],
        optimizer=Optimizer(steps=48, lr=0.05, batch=16),
        evaluation=Evaluation(reports=12, prompts=64),
        saving=Saving(checkpoint=folder / "training.safetensors", progress=lambda done, total: say(0)),
    )
    write_tensors(folder / "made.safetensors", {"risk": made.risk, "U": made.U, "V": made.V}, {})


def loaded() -> Any:
    """A small BERT of letters, the same in every process."""
    transformers = pytest.importorskip("transformers")
    from attnlimit.models.see.load import Loaded

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=64, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertModel(config).eval().requires_grad_(False)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
    Path("vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return Loaded(model, transformers.BertTokenizerFast("vocab.txt"), "letters", "encoder")


def analysis(folder: Path, say: Say) -> None:
    from attnlimit.models.analyse.analyze import Reading, analyze

    text = " ".join(random.Random(0).choices(string.ascii_lowercase, k=200))
    reading = Reading(tokens=24, passages=3, queries=4, answer=1)
    run = analyze(
        LOADED[0], [text], reading=reading, folder=folder, progress=lambda done, total: say(0), note=NOTES.append
    )  # fmt: skip
    run.save(folder)


def report(folder: Path, say: Say) -> None:
    from attnlimit.report.html import write_report

    if not (folder / "run.json").exists():
        analysis(folder, say)
    with contextlib.chdir(folder):  # whose name is in the page
        for _ in range(2):
            write_report(".")
            say(0)


LOADED: list[Any] = []
NOTES: list[str] = []
RUN = ("run.json", "answer.safetensors")
WORKS = {
    "study": Work(study, stored, 12 * TIMES),
    "training": Work(training, files("made.safetensors"), 5 * TIMES),
    "analysis": Work(analysis, files(*RUN), 5 * TIMES),
    "report": Work(report, files(*RUN, "report.html"), 3 * TIMES),
}


# --- killing ------------------------------------------------------------------------------------------


def killed(process: Any, heard: Any, moments: random.Random) -> tuple[bool, int]:
    """Let it say something a few times, or now and then many, as trials of budgets are made in one go; kill it at a random moment before it
    would again, however fast or slow this machine is; whether it was still at work, and the last that it said."""
    last, before, gap = 0, time.monotonic(), 0.3
    try:
        for _ in range(moments.choice((*range(6), 30))):
            last = heard.recv()
            gap, before = time.monotonic() - before, time.monotonic()
        time.sleep(moments.uniform(0, gap))
    except EOFError:
        process.join()
        assert process.exitcode == 0
        return False, last
    process.kill()
    process.join()
    try:
        while heard.poll():
            last = heard.recv()
    except EOFError:
        pass
    return process.exitcode != 0, last


@pytest.mark.parametrize("name", WORKS)
def test_killed_at_random_moments(name, tmp_path, forked):
    work, moments = WORKS[name], random.Random(SEED)
    LOADED[:] = [loaded()] if name in ("analysis", "report") else []

    def started(folder: Path) -> tuple[Any, Any]:
        def alone(say: Say) -> None:
            torch.set_num_threads(1)
            work.run(folder, say)

        return forked(alone)

    work.run(tmp_path / "warm", lambda done: None)
    process, _ = started(tmp_path / "whole")
    process.join()
    assert process.exitcode == 0
    whole = work.look(tmp_path / "whole")
    kills = grew = rounds = 0
    while kills < work.kills:
        folder, known, at_work = tmp_path / f"round-{rounds}", {}, True
        while at_work:
            at_work, claimed = killed(*started(folder), moments)
            found = work.look(folder)
            assert known.items() <= found.items() <= whole.items()  # nothing is gone, changed or half
            assert claimed <= len(found)  # nothing was claimed that is not there
            kills += at_work
            grew += at_work and claimed > len(known)
            known = found
        assert known == whole
        assert not list(folder.glob("**/unfinished*.safetensors"))
        rounds += 1
        print(f"{name}: {kills} kills, {rounds} runs to the end")  # noqa: T201
    assert name != "study" or grew >= work.kills // 4  # kills came while results were being written
