"""attnlimit explain as a person runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnlimit.cli import app

pytest.importorskip("transformers")
TEXT = (
    "The river gave the city its name. When the river was dammed the city grew, and [red]Amsterdam was there."
)


@pytest.fixture
def run():
    Path("a.txt").write_text(TEXT)
    return lambda *words: CliRunner().invoke(app, ["explain", "--text", "a.txt", *map(str, words)])


def test_explain_shows_roles_and_what_a_token_reads(run) -> None:
    made = run("--token", "name", "--index", 3, "--out", "out")
    assert made.exit_code == 0, made.output
    for words in (
        "Leading role of each head",
        "prev ",
        "Roles: how the attention",
        "Rank correlation of a role's share",
    ):
        assert words in made.stdout
    assert "What is read at token 7, 'name'" in made.stdout
    assert "What is read at token 3, 'gave'" in made.stdout
    assert "average of" in made.stdout
    record = json.loads(Path("out/explain.json").read_text())
    assert record["text"] == TEXT
    page = Path("out/explain.html").read_text()
    assert "Page: out/explain.html" in made.stdout
    assert "<title>minilm: what each head reads, attnlimit</title>" in page
    assert [one["token"] for one in record["chosen"]] == [7, 3]


def test_explain_as_json_without_the_answer(run) -> None:
    made = run("--answer", "off", "--tokens", 8, "--json")
    assert made.exit_code == 0, made.output
    record = json.loads(made.stdout)
    assert (len(record["heads"]), record["unit"], record["chosen"], record["cut"]) == (72, None, [], True)
    assert record["text"] == "The river gave the city its"
    assert record["map"]["matters"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--token", "river"), "'river' occurs 2 times: 2 (…The river"),
        (("--which", 2), "--which says which occurrence of a word: give the word with --token."),
        (("--answer", "maybe"), "--answer must be on or off, got 'maybe'."),
    ],
)
def test_explain_refuses_what_it_cannot_do(run, words, message) -> None:
    made = run(*words)
    assert made.exit_code == 2
    assert message in " ".join(made.stderr.split())
