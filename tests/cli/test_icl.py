"""attnlimit icl: from a study to tables and figures, stopped and gone on with, and what is wrong in the file."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from attnlimit.cli import app
from attnlimit.errors import InputError
from attnlimit.icl import LinearRegression, ar1, tuned
from attnlimit.studies import load_study
from attnlimit.studies.kind import kind
from attnlimit.studies.spec import points

EXAMPLES = Path(__file__).parents[2] / "examples"
SPEC = """\
name: small
kind: icl
what:
  task: {dim: 2}
  lengths: [4, 16, 64]
  optimizer:
    lr: 0.1
    steps: 24
    batch: 16
  evaluation: {reports: 3, prompts: 64, test_lengths: [8, 32]}
cases:
  - {task.name: plain}
  - {task.kind: classification}
grid:
  attention: [softmax, linear]
replicates: 2
quick:
  what.optimizer.steps: 12
  cases: [{task.name: plain}]
"""


SLOW = """
import importlib, time
training = importlib.import_module("attnlimit.icl.train")
write = training.write_checkpoint
training.write_checkpoint = lambda *all: (write(*all), time.sleep(2))
from attnlimit.cli import app
app()
"""
"""A command whose trainings wait after each checkpoint, so that they are stopped there."""


def written(text: str = SPEC) -> str:
    Path("spec.yaml").write_text(text, encoding="utf-8")
    return "spec.yaml"


def called(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["icl", *arguments, "--workers", "1"])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("name", ["icl-risk", "icl-trajectory"])
def test_the_shipped_files_hold_the_published_settings(name: str) -> None:
    """d = 5, SGD 1e-3, batch 128, noise variance 0.1, I and 0.5^|i−j|, w ~ N(0, I/d), 300,000 steps."""
    asked = [kind("icl").model_validate(what) for what in points(load_study(EXAMPLES / f"{name}.yaml"))]
    assert [one.attention for one in asked] == ["softmax", "linear"] * 2
    covariances = [torch.eye(5).double()] * 2 + [ar1(5, 0.5)] * 2
    for one, cov in zip(asked, covariances, strict=True):
        task, how = one.task.build(), one.optimizer
        assert isinstance(task, LinearRegression)
        assert task.noise == 0.1
        torch.testing.assert_close(task.cov, cov)
        torch.testing.assert_close(task.vector_cov, torch.eye(5).double() / 5)
        assert (how.kind, how.lr, how.batch, how.steps) == ("sgd", 1e-3, 128, 300_000)
        assert min(one.lengths) == 10
        assert max(one.lengths) == 1000
        assert name != "icl-risk" or len(one.lengths) == 19
    quick = [
        kind("icl").model_validate(what) for what in points(load_study(EXAMPLES / f"{name}.yaml", quick=True))
    ]
    assert [one.task for one in quick] == [one.task for one in asked]
    assert all(one.optimizer.steps <= 1000 for one in quick)
    assert all(one.optimizer.batch == 64 for one in quick)


def test_one_command_writes_tables_and_figures() -> None:
    code, output = called(written(), "--quick", "--out", "here")
    assert code == 0, output
    assert "plain: risk after training" in output
    assert (
        "Predicted as L → ∞: risk 5.97/L (softmax), 1.6/L (linear); with the L = ∞ weights ∝ L^−0.79"
        in output
    )
    found = {path.name for path in Path("here").iterdir()}
    assert {"results.parquet", "risks.csv", "study.yaml", "summary.json", "report.html", "figures"} <= found
    assert not [*Path("here").glob("checkpoints/*")]  # all are done
    figures = {path.name for path in Path("here/figures").iterdir()}
    assert figures == {"risk.png", "trajectory-0.png", "lengths-0.png"}
    rows = pq.read_table("here/results.parquet").to_pylist()
    assert len(rows) == 2 * len({row["step"] for row in rows}) * 2 * 3
    with Path("here/risks.csv").open(encoding="utf-8") as file:
        risks = list(csv.DictReader(file))
    assert [int(row["length"]) for row in risks] == [4, 16, 64]
    for attention in ("softmax", "linear"):
        ends = [row["risk"] for row in rows if row["what.attention" if "what.attention" in row else "attention"] == attention
                and row["step"] == 12 and row["length"] == 64]  # fmt: skip
        assert float(risks[-1][attention]) == pytest.approx(sum(ends) / 2)
        exact = [tuned(LinearRegression(2), length, attention)[1] for length in (4, 16, 64)]
        assert [float(row[f"{attention}_predicted"]) for row in risks] == exact
    page = Path("here/report.html").read_text(encoding="utf-8")
    assert "plain: trained on prompts of 64 tokens, softmax attention ends with risk" in page
    assert "No method can do better than" in page


def test_json_and_the_default_folder() -> None:
    result = CliRunner().invoke(app, ["icl", written(), "--quick", "--json", "--workers", "1"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert Path("attnlimit-out/small-quick/store.sqlite").is_file()
    (plain,) = told["comparisons"]
    assert plain["methods"].keys() == {"softmax", "linear"}
    assert all(row["softmax_low"] <= row["softmax"] <= row["softmax_high"] for row in plain["risks"])
    assert "exact risk of tuned weights: the prediction" in {rate["quantity"] for rate in plain["rates"]}
    assert len(told["points"]) == 2


def test_all_tasks_of_a_file_are_trained() -> None:
    code, output = called(written(), "--out", "here")
    assert code == 0, output
    assert "plain: risk after training" in output
    assert "classification, Σ_ij = 0^|i−j|: risk after training" in output


@pytest.fixture
def no_figures(monkeypatch) -> None:
    """They take longer than the work, and other tests look at them."""
    monkeypatch.setattr("attnlimit.cli.studies.study_pictures", lambda name, points: [])


@pytest.mark.usefixtures("no_figures")
def test_what_is_done_is_not_done_again() -> None:
    assert called(written(), "--quick", "--out", "a")[0] == 0
    first = pq.read_table("a/results.parquet")
    assert called("spec.yaml", "--quick", "--out", "a", "--resume")[0] == 0
    assert called("a")[0] == 0
    assert pq.read_table("a/results.parquet") == first
    summary = json.loads(Path("a/summary.json").read_text(encoding="utf-8"))
    assert summary["done"] == 2


@pytest.mark.usefixtures("no_figures")
@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
def test_an_interrupted_run_goes_on_from_its_checkpoint_bit_for_bit() -> None:
    """Stopped once a checkpoint is there; the rest of the steps gives the numbers of a run that was never stopped."""
    long = SPEC.replace("steps: 24", "steps: 100").replace("reports: 3", "reports: 30")
    spec = written(
        long.replace("  - {task.kind: classification}\n", "").replace("[softmax, linear]", "[linear]")
    )
    assert called(spec, "--out", "whole")[0] == 0
    command = [sys.executable, "-c", SLOW, "icl", spec, "--out", "parts", "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not [*Path("parts").glob("checkpoints/*/*.safetensors")] and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "--resume" in told
    assert [*Path("parts").glob("checkpoints/*/*.safetensors")]
    assert called("parts", "--resume")[0] == 0
    assert pq.read_table("parts/results.parquet") == pq.read_table("whole/results.parquet")
    assert not [*Path("parts").glob("checkpoints/*")]


def test_diverging_steps_are_told() -> None:
    code, output = called(written(SPEC.replace("lr: 0.1", "lr: 1e4")), "--quick", "--out", "a")
    assert code == 1
    assert "Diverged: Training diverged at step" in output


def test_another_kind_of_study_is_refused() -> None:
    code, output = called(str(EXAMPLES / "tiny.yaml"), "--out", "a")
    assert code == 2
    assert "not icl: run it with attnlimit sweep" in output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    lr: 0.1", "    lr: -1", r"spec\.yaml: line 6, optimizer: lr must be a finite number above 0, got -1"),
        ("    lr: 0.1", "    rate: 1", r"line 7, optimizer\.rate: there is no such field"),
        ("lengths: [4, 16, 64]", "lengths: [0, 16]", r"line 5, lengths\.0: .*greater than or equal to 1"),
        ("lengths: [4, 16, 64]", "lengths: [16, 16]", r"line 5, lengths: sizes must increase, each given once"),
        ("    batch: 16", "    kind: lion", r"line 9, optimizer\.kind: .*'sgd', 'momentum' or 'adam', got 'lion'"),
        ("task: {dim: 2}", "task: {kind: poetry}", r"task: kind must be regression, classification or denoising"),
        ("task: {dim: 2}", "task: {dim: 2, cov: [[1, 2], [2, 1]]}", "cov is not positive definite"),
        ("    batch: 16", "    variance_reduction: control", "needs the exact infinite-prompt gradient"),
        ("reports: 3", "reports: [25]", "reports must be steps from 0 to 24"),
        ("name: small", "name: ../up", r"line 1, name: .*pattern"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_file_is_said(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_study(written(SPEC.replace(old, new, 1)))


def test_an_output_folder_that_is_a_file_is_refused() -> None:
    Path("here").write_text("")
    code, output = called(written(), "--quick", "--out", "here")
    assert code == 2
    assert "here" in output
