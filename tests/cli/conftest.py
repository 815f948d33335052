"""What the tests of commands share."""

import random
import string
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner


@pytest.fixture
def run():
    """A command as a person runs it, and how it must end."""
    from attnlimit.cli import app  # here: jaxtyping must come first where this folder alone is run

    def invoke(*words: object, code: int = 0):
        result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


@pytest.fixture(scope="session")
def letters(tmp_path_factory) -> Path:
    """A small BERT of letters, in a folder; not to be changed."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models") / "small"
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=64, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture
def model(letters) -> Path:
    """The small BERT, with a text for it in t.txt."""
    text = random.Random(0).choices(string.ascii_lowercase, k=200)
    Path("t.txt").write_text(" ".join(text), encoding="utf-8")
    return letters
