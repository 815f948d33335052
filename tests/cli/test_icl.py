"""attnlimit icl: from a file to tables and figures, and what is wrong in the file."""

import csv
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from attnlimit.cli import app
from attnlimit.errors import InputError
from attnlimit.icl import LinearRegression, ar1, train, tuned
from attnlimit.icl.spec import read_spec
from attnlimit.icl.sweep import TaskRuns, sweep

EXAMPLES = Path(__file__).parents[2] / "examples"
SPEC = """\
name: small
figures: [risk, trajectory, lengths]
tasks:
  - {name: plain, dim: 2}
  - {name: classes, kind: classification, dim: 2}
lengths: [16, 4, 64]
training:
  lr: 0.1
  steps: 24
  batch: 16
  seeds: 2
  reports: 3
  evaluation: 64
  test_lengths: [8, 32]
quick:
  tasks:
    - {name: plain, dim: 2}
  training: {steps: 12}
"""


def written(text: str = SPEC) -> str:
    Path("spec.yaml").write_text(text, encoding="utf-8")
    return "spec.yaml"


def called(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["icl", *arguments])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("name", ["icl-risk", "icl-trajectory"])
def test_the_shipped_files_hold_the_published_settings(name: str) -> None:
    """d = 5, SGD 1e-3, batch 128, noise variance 0.1, I and 0.5^|i−j|, w ~ N(0, I/d), 300,000 steps."""
    spec = read_spec(EXAMPLES / f"{name}.yaml")
    plain, ar = spec.built().values()
    for task, cov in ((plain, torch.eye(5).double()), (ar, ar1(5, 0.5))):
        assert isinstance(task, LinearRegression)
        assert task.noise == 0.1
        torch.testing.assert_close(task.cov, cov)
        torch.testing.assert_close(task.vector_cov, torch.eye(5).double() / 5)
    settings = spec.training
    assert (settings.optimizer, settings.lr, settings.batch, settings.steps) == ("sgd", 1e-3, 128, 300_000)
    assert spec.attentions == ["softmax", "linear"]
    assert min(spec.lengths) == 10
    assert max(spec.lengths) == 1000
    if name == "icl-risk":
        assert len(spec.lengths) == 19
    quick = read_spec(EXAMPLES / f"{name}.yaml", quick=True)
    assert quick.training.steps <= 1000
    assert quick.training.batch == 64
    assert quick.tasks == spec.tasks


def test_one_command_writes_tables_and_figures() -> None:
    code, output = called(written(), "--quick", "--out", "here")
    assert code == 0, output
    assert "plain: risk after training" in output
    assert (
        "Predicted as L → ∞: risk 5.97/L (softmax), 1.6/L (linear); with the L = ∞ weights ∝ L^−0.79"
        in output
    )
    figures = {"risk", "trajectory", "lengths-softmax", "lengths-linear"}
    names = {f"{name}-0{kind}" for name in figures for kind in (".png", ".pdf")}
    names |= {
        "runs.parquet",
        "runs.csv",
        "risks.csv",
        "spec.json",
        "summary.json",
        "report.html",
        "checkpoints",
    }
    assert {path.name for path in Path("here").iterdir()} == names
    with Path("here/runs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len({row["step"] for row in rows}) * 2 * 3
    same = pq.read_table("here/runs.parquet").to_pylist()
    assert [row["risk"] for row in same] == [float(row["risk"]) for row in rows]
    summary = json.loads(Path("here/summary.json").read_text(encoding="utf-8"))
    assert [row["length"] for row in summary["risks"]] == [16, 4, 64]
    assert "torch" in summary["versions"]
    for attention in ("softmax", "linear"):
        exact = [tuned(LinearRegression(2), length, attention)[1] for length in (16, 4, 64)]
        assert [row[f"{attention}_predicted"] for row in summary["risks"]] == exact
    assert json.loads(Path("here/spec.json").read_text(encoding="utf-8"))["training"]["steps"] == 12


def test_json_and_the_default_folder() -> None:
    result = CliRunner().invoke(
        app, ["icl", written(SPEC.replace("[risk, trajectory, lengths]", "[risk]")), "--quick", "--json"]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["folder"] == "runs/small-quick"
    assert "risk-0.pdf" in told["files"]
    assert told["methods"]["plain"].keys() == {"softmax", "linear"}
    assert all(row["softmax_low"] <= row["softmax"] <= row["softmax_high"] for row in told["risks"])


def test_all_tasks_of_a_file_are_trained() -> None:
    result = sweep(read_spec(written()))
    assert [part.name for part in result.tasks] == ["plain", "classes"]
    assert [row["length"] for row in result.risks()] == [16, 4, 64] * 2
    classes = result.tasks[1]
    assert classes.exponent() is None
    assert classes.transferred is None
    assert classes.floors is not None
    assert repr(result) == "Sweep(small: plain, classes)"


def test_resume_goes_on_from_checkpoints_and_gives_the_same_numbers() -> None:
    spec = SPEC.replace("[risk, trajectory, lengths]", "[risk]")
    path = written(spec)
    assert called(path, "--quick", "--out", "a")[0] == 0
    first = Path("a/runs.csv").read_text()
    stamp = Path("a/checkpoints/0-softmax.safetensors").stat().st_mtime_ns
    assert called(path, "--quick", "--out", "a", "--resume")[0] == 0
    assert Path("a/runs.csv").read_text() == first
    assert Path("a/checkpoints/0-softmax.safetensors").stat().st_mtime_ns == stamp  # nothing was left to do
    assert called(path, "--quick", "--out", "a")[0] == 0
    assert Path("a/checkpoints/0-softmax.safetensors").stat().st_mtime_ns != stamp
    assert Path("a/runs.csv").read_text() == first
    written(spec.replace("lr: 0.1", "lr: 0.2"))
    code, output = called(path, "--quick", "--out", "a", "--resume")
    assert code == 2
    assert "belongs to another run: its lr" in output


def test_an_interrupted_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnlimit.icl.sweep.train", stop)
    code, output = called(written(), "--quick", "--out", "a")
    assert code == 130
    assert "--resume" in output


def test_diverging_steps_leave_with_two() -> None:
    code, output = called(written(SPEC.replace("lr: 0.1", "lr: 1e4")), "--quick", "--out", "a")
    assert code == 2
    assert "Diverged: Training diverged at step" in output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  lr: 0.1", "  lr: -1", r"spec\.yaml: line 8, training\.lr: .*greater than 0, got '-1'"),
        ("  lr: 0.1", "  rate: 1", r"line 8, training\.rate: there is no such field"),
        ("lengths: [16, 4, 64]", "lengths: [16, 0]", r"line 6, lengths\.1: .*greater than 0"),
        ("lengths: [16, 4, 64]", "lengths: [16, 16]", r"lengths must differ, got \[16, 16\]"),
        (
            "  batch: 16",
            "  optimizer: lion",
            r"line 10, training\.optimizer: .*'sgd', 'momentum' or 'adam', got 'lion'",
        ),
        ("{name: classes, kind", "{name: plain, kind", r"task names must differ"),
        (
            "kind: classification",
            "kind: poetry",
            r"line 5, tasks\.1: kind must be regression, classification or denoising",
        ),
        ("training: {steps: 12}", "training: {steps: 0}", r"line 18, training\.steps: .*greater than 0"),
        ("name: small", "name: ../up", r"line 1, name: .*pattern"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_line_and_field(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_spec(written(SPEC.replace(old, new)))


def test_an_output_folder_that_is_a_file_is_refused() -> None:
    Path("here").write_text("")
    code, output = called(written(), "--quick", "--out", "here")
    assert code == 2
    assert "here is a file" in output


def test_a_covariance_that_is_not_positive_definite_is_refused() -> None:
    text = SPEC.replace("{name: plain, dim: 2}", "{name: plain, dim: 2, cov: [[1, 2], [2, 1]]}", 1)
    with pytest.raises(InputError, match="cov is not positive definite"):
        sweep(read_spec(written(text)))


def test_rates_are_those_of_the_curves() -> None:
    """Known powers put in: gradient gap L^−1, distance to the flow L^−½ on the way and constant after."""
    task = LinearRegression(2)
    run = train(task, (8, 32, 128), lr=0.1, steps=6, reports=[5], evaluation=16, seeds=2, batch=8)
    n = torch.tensor(run.lengths).double()
    shape = run.risk.shape
    gap = (n**-0.5).expand(shape).clone()
    gap[-1] = 1.0
    made = vars(run) | {"gradient_gap": (1 / n).expand(shape), "parameter_gap": gap}
    made["flow_risk"] = torch.tensor([1.0, 0.5, 1e-4]).double()[:, None].expand(shape[:2])
    part = TaskRuns("t", task, {"softmax": type(run)(**made)}, None, None, {})
    found = {rate["quantity"]: rate for rate in part.rates()}
    assert found["gradient gap, mean along training"]["exponent"] == pytest.approx(1)
    assert found["largest distance to the flow, until it arrives"]["exponent"] == pytest.approx(0.5)
    assert found["largest distance to the flow, whole run"]["exponent"] == pytest.approx(0)
    # Σ = I in two dimensions: H² = 1/√2, beyond the transition at ½
    assert part.exponent() == pytest.approx((math.sqrt(1 + 4 * math.sqrt(2)) - 1) / 2)
