"""Texts: what is read, what is refused, and that Wikipedia's markup really is gone."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from attnlimit.errors import InputError, MissingExtra
from attnlimit.models.see import wikipedia as wikipedia_module
from attnlimit.models.see.text import Document, as_documents, documents, special_tokens, texts, token_windows
from attnlimit.models.see.wikipedia import clean, wikipedia


@pytest.fixture(scope="module")
def tokenizer():
    from attnlimit.models.see.find import packaged_bert

    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(packaged_bert())


class Letters:
    """One token a character, no special tokens."""

    def __call__(self, text, add_special_tokens=True, return_special_tokens_mask=False, verbose=True):
        return {"input_ids": [ord(c) for c in text], "special_tokens_mask": [0] * len(text)}


# --- files ----------------------------------------------------------------------------------------


def test_plain_files_are_one_document_each():
    Path("a.txt").write_text("Été, first.", encoding="utf-8")
    Path("b.md").write_bytes(b"\xef\xbb\xbfsecond")  # a byte order mark is no part of the text
    assert texts(["a.txt", Path("b.md")]) == ["Été, first.", "second"]
    assert [one.title for one in documents(["a.txt", "b.md"])] == ["a", "b"]
    assert texts("a.txt") == ["Été, first."]


def test_jsonl_has_a_document_a_line_with_label():
    rows = [
        {"text": "good", "label": "POSITIVE"},
        {"text": "bad", "label": 0, "title": "second"},
        {"text": "?"},
    ]
    Path("rows.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    found = documents(["rows.jsonl"])
    assert [(one.text, one.label) for one in found] == [("good", "POSITIVE"), ("bad", 0), ("?", None)]
    assert found[1].title == "second"
    assert repr(found[1]) == "Document('second', 3 characters, label 0)"


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert documents(["-"]) == [Document("standard input", "from a pipe")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": \n', r"rows\.jsonl, line 2: not JSON that can be read \(Expecting"),
        (
            '{"text": "a"}\n' + "[" * 100_000,
            r"rows\.jsonl, line 2: not JSON that can be read \(maximum recursion",
        ),
        (
            '{"text": "a", "label": ' + "9" * 5000 + "}",
            r"line 1: not JSON that can be read \(Exceeds the limit",
        ),
        ('{"text": "a"}\n{"text": "\\ud800 b"}', r"line 2: holds half of a surrogate pair .*take it out"),
        ('{"text": "a", "title": "\\udfff"}', r"line 1: holds half of a surrogate pair"),
        ('\n{"words": "a"}\n', r'rows\.jsonl, line 2: needs an object with a string field "text"'),
        ('["a"]', r"line 1: needs an object"),
        ('{"text": "a", "label": 0.5}', r'line 1: "label" must be a name or a whole number, got 0\.5'),
        ('{"text": "a", "label": true}', r'line 1: "label" must be a name or a whole number, got True'),
        ("\n\n", r"rows\.jsonl is empty"),
        ('{"text": "  "}', r"line 1' is empty: there is nothing to run the model on"),
    ],
)
def test_bad_jsonl_names_the_line(content, message):
    Path("rows.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        documents(["rows.jsonl"])


def test_unusable_sources_are_refused():
    Path("empty.txt").write_text(" \n", encoding="utf-8")
    Path("latin.txt").write_bytes("déjà".encode("latin-1"))
    Path("folder").mkdir()
    with pytest.raises(InputError, match=r"The text file 'gone\.txt' does not exist"):
        texts(["gone.txt"])
    with pytest.raises(InputError, match=r"The text 'empty' is empty"):
        texts(["empty.txt"])
    with pytest.raises(InputError, match=r"'latin\.txt' is not UTF-8 text \(byte 1\)"):
        texts(["latin.txt"])
    with pytest.raises(InputError, match=r"'folder' is a folder: name the text files"):
        texts(["folder"])
    with pytest.raises(InputError, match=r"cannot be read: Not a directory"):
        texts(["empty.txt/below"])
    with pytest.raises(InputError, match=r"No text was given"):
        texts([])


def test_what_may_never_end_is_refused(monkeypatch):
    os.mkfifo("pipe")
    for name in ("pipe", "/dev/zero"):
        with pytest.raises(
            InputError, match=rf"'{name}' is no file but a pipe or a device.* or - for standard"
        ):
            texts([name])
    monkeypatch.setattr("attnlimit.models.see.text.MOST_BYTES", 4)
    Path("four.txt").write_text("abcd", encoding="utf-8")
    assert texts("four.txt") == ["abcd"]
    Path("five.txt").write_text("abcde", encoding="utf-8")
    with pytest.raises(InputError, match=r"'five\.txt' holds more than 4 bytes, .*give a part of it"):
        texts("five.txt")


def test_only_line_feeds_end_a_line_of_jsonl():
    Path("rows.jsonl").write_text('{"text": "a\u2028b"}\r\n{"text": "c"}', encoding="utf-8")
    assert texts("rows.jsonl") == ["a\u2028b", "c"]


def test_texts_given_in_memory_are_checked():
    assert as_documents(["a", Document("t", "b")]) == [Document("text 1", "a"), Document("t", "b")]
    with pytest.raises(InputError, match=r"texts must be a list of at least one text, got str"):
        as_documents("a")
    with pytest.raises(InputError, match=r"texts must be a list of at least one text, got list"):
        as_documents([])
    with pytest.raises(InputError, match=r"Every text must be a string that is not empty, got ' '"):
        as_documents(["a", " "])
    with pytest.raises(InputError, match=r"half of a surrogate pair, .*take it out of 'b\\ud800'"):
        as_documents(["a", "b\ud800"])


# --- Wikipedia ------------------------------------------------------------------------------------


def test_markup_is_removed_and_prose_kept():
    markup = """{{Infobox|name={{nested|x}}|{{!}}}}
<!-- hidden --> '''Albedo''' ({{IPAc-en|x}}; {{lang|la|albedo}}) is the [[reflectivity|reflecting ''power'']] of snow<ref name="a">{{cite|b}}</ref>.
[[File:Snow.jpg|thumb|A [[snow|snowy]] field and nothing else at all here]]
== Heading ==
It covers {{convert|5|km|mi}} of land&nbsp;and H<sub>2</sub>O, says [http://x.org a study of it]<ref name="a"/> [[Category:Snow]].
{| class="wikitable"
| a table with {{convert|1|m}} many words in one of its cells
|}
* a list item that has more than six words in it
Too short.
== References ==
This sentence stands in a closing section and must go."""
    assert clean(markup) == (
        "Albedo (albedo) is the reflecting power of snow.\nIt covers 5 km of land and H2O, says a study of it."
    )


def test_unbalanced_markup_loses_no_prose_before_it():
    assert clean("A sentence with enough words to stay here. {{never closed").startswith(
        "A sentence with enough words"
    )
    assert clean("}} A stray closing mark does no harm to anything |} at all.").count("harm") == 1


def test_wikipedia_articles_are_prose():
    articles = dict(wikipedia())
    assert len(articles) == 95
    assert all(len(prose.split()) >= 200 for prose in articles.values())
    everything = "\n".join(articles.values())
    assert 350_000 < len(everything.split()) < 450_000
    assert not re.search(r"\[\[|\]\]|\{\{|\}\}|''|</?ref|&nbsp;|\|thumb|https?://", everything)
    assert articles["Anarchism"].startswith(
        "Anarchism is a political philosophy that advocates self-governed"
    )
    assert articles["Aardvark"].startswith("The aardvark")
    assert [one.title for one in documents()][:3] == ["Anarchism", "Autism", "Albedo"]
    assert texts(None) == list(articles.values())


def test_without_gensim_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(wikipedia_module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'attnlimit\[demo\]'"):
        wikipedia_module._path()


# --- windows --------------------------------------------------------------------------------------


def test_windows_go_round_the_documents_and_do_not_cross_them():
    windows = token_windows(Letters(), ["abcdefg", "uv", "xyzXYZ"], 3)
    assert ["".join(map(chr, row)) for row in windows.tolist()] == ["abc", "xyz", "def", "XYZ"]
    assert token_windows(Letters(), ["abcdefg", "uv", "xyzXYZ"], 3, most=2).tolist() == windows[:2].tolist()


def test_windows_carry_the_special_tokens_of_the_model(tokenizer):
    given = list(wikipedia()[0][1:])
    windows = token_windows(tokenizer, given, 64)
    assert windows.shape[1] == 64
    assert windows.dtype == torch.int64
    assert bool(
        (windows[:, 0] == tokenizer.cls_token_id).all() and (windows[:, -1] == tokenizer.sep_token_id).all()
    )
    plain = tokenizer(given[0], add_special_tokens=False, verbose=False)["input_ids"]
    assert windows[:, 1:-1].flatten().tolist() == plain[: windows[:, 1:-1].numel()]
    assert len(windows) == len(plain) // 62
    assert special_tokens(tokenizer) == ([tokenizer.cls_token_id], [tokenizer.sep_token_id])


def test_windows_that_cannot_be_are_refused(tokenizer):
    with pytest.raises(InputError, match=r"No text is as long as 10 tokens: the longest of 2 has 5"):
        token_windows(tokenizer, ["hello there you", "hello"], 10)
    with pytest.raises(InputError, match=r"tokens must be above 2, the special tokens of this model, got 2"):
        token_windows(tokenizer, ["hello"], 2)
    with pytest.raises(InputError, match=r"tokens must be a whole number of at least 1, got 0"):
        token_windows(tokenizer, ["hello"], 0)
    with pytest.raises(InputError, match=r"most must be a whole number of at least 1, got -1"):
        token_windows(tokenizer, ["hello"], 3, most=-1)
