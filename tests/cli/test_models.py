"""analyze, budget and downstream as a person runs them: tables, files, exit codes."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from attnlimit.cli import app
from attnlimit.models.see.text import texts

pytest.importorskip("transformers")


@pytest.fixture
def run():
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """An analysis of two articles, made once."""
    folder = tmp_path_factory.mktemp("models")
    article = folder / "articles.jsonl"
    article.write_text("\n".join(json.dumps({"text": text[:2500]}) for text in texts()[:4]))
    made = CliRunner().invoke(
        app,
        [
            "analyze",
            "--text",
            str(article),
            "--tokens",
            "48",
            "--passages",
            "2",
            "--queries",
            "4",
            "--out",
            str(folder / "run"),
        ],
    )
    return SimpleNamespace(folder=folder, article=article, made=made)


def test_analyze_says_memory_then_shows_keys_and_writes_files(small):
    assert small.made.exit_code == 0, small.made.output
    assert small.made.stderr.startswith("Memory: about 0.0")
    assert "Keys a query reads for 5 % error" in small.made.stdout
    assert {"run.json", "heads.parquet", "heatmap.png", "curves.png", "slopes.png"} <= {
        path.name for path in (small.folder / "run").iterdir()
    }
    record = json.loads((small.folder / "run" / "run.json").read_text())
    assert len(record["heads"]) == 72
    assert record["memory"] > 1e6
    table = [
        line.split()[1:]
        for line in small.made.stdout.splitlines()
        if re.match(r" +\d+( +[\d.k]+\+?| +all){12}$", line)
    ]
    assert [cell for row in table for cell in row] == [shown(one["needed"]) for one in record["heads"]]


def shown(needed) -> str:
    return "all" if needed["all"] else f"{needed['keys']:.0f}" + "+" * ("kept" in needed["sampling"])


def test_budget_by_error_and_by_total(small, run):
    made = run("budget", small.folder / "run", "--rel-error", "0.3", "--out", "a.json")
    assert made.exit_code == 0, made.output
    assert "% of full attention" in made.stdout
    for split in ("output", "head", "uniform"):
        shared = run("budget", small.folder / "run", "--total", "600", "--split", split, "--json")
        assert shared.exit_code == 0, shared.output
        record = json.loads(shared.stdout)
        assert record["policy"] == f"best, {split} split"
        assert 600 - 72 < record["total"] <= 600
        assert record["total"] == pytest.approx(sum(one["keys"] for one in record["entries"]))
    empty = run("budget", small.folder / "run", "--keys", "")
    assert empty.exit_code == 2
    assert "--keys must be a share such as 10% or 0.1, got ''" in empty.stderr
    wrong = run("budget", small.folder / "run", "--total", "600", "--split", "fair")
    assert wrong.exit_code == 2
    assert "split must be one of answer, output, head, uniform" in wrong.stderr
    few = run("budget", small.folder / "run", "--total", "10", "--split", "output")
    assert few.exit_code == 2
    assert "72 heads need 72" in " ".join(few.stderr.split())
    few = run("budget", small.folder / "run", "--total", "10")  # for the answer: own token, 4 sinks, 4 drawn
    assert few.exit_code == 2
    assert "all heads together read at least 288," in " ".join(few.stderr.split())


def test_downstream_compares_and_draws(small, run):
    common = ["--text", small.article, "--seeds", "1", "--tokens", "48"]
    made = run("downstream", "--keys", "2,8", "--run", small.folder / "run", "--out", "d", *common)
    assert made.exit_code == 0, made.output
    assert "Optimal split (output)" in made.stdout
    assert {path.name for path in Path("d").iterdir()} == {"downstream.json", "downstream.png", "thirds.png"}
    record = json.loads(Path("d/downstream.json").read_text())
    assert len(record["key_ratio"]) == 2
    assert len(record["horizons"]) == 4
    two = run("downstream", "--keys", "4", "--out", "e", "--examples", "2", "--json", *common)
    assert two.exit_code == 0, two.output
    assert json.loads(two.stdout)["thirds"] == {}  # too few examples
    assert not Path("e/thirds.png").exists()
    for words, message in (
        (["--policy", "x"], "--policy must be one of"),
        (["--keys", "0"], "--keys must be"),
    ):
        wrong = run("downstream", *words)
        assert wrong.exit_code == 2
        assert message in wrong.stderr


def test_packaged_models_are_named_in_the_help(run):
    from attnlimit.models.see.find import PACKAGED

    shown = run("analyze", "--help").stdout
    assert all(name in shown for name in PACKAGED)


def test_a_conversion_is_told_beside_the_results(monkeypatch, capsys):
    from attnlimit.cli.model_options import loaded_model

    monkeypatch.setattr("attnlimit.load", lambda name, note, **rest: note(f"{name} [once]"))
    loaded_model("some.gguf", None, None)
    assert capsys.readouterr().err == "some.gguf [once]\n"
