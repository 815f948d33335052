"""Settings files: what is read, and that what is wrong is said with its line."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from attnlimit.errors import InputError
from attnlimit.files.yamlfile import read_yaml, validated


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = Field(gt=0)


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    parts: list[Part] = []
    rate: float = 1.0

    @model_validator(mode="after")
    def _fits(self) -> "Whole":
        if self.name == "empty" and self.parts:
            raise ValueError("parts were given for an empty whole.")
        return self


def written(text: str) -> Path:
    path = Path("spec.yaml")
    path.write_text(text, encoding="utf-8")
    return path


def test_values_follow_yaml_1_2_and_lines_count_from_one() -> None:
    data, lines = read_yaml(
        written("rate: 1e-3\nwords: [no, 1:30, 2026-01-01, 0x10]\nmap:\n  n: 1_000\n  none: ~\n")
    )
    assert data == {
        "rate": 1e-3,
        "words": ["no", "1:30", "2026-01-01", "0x10"],
        "map": {"n": 1000, "none": None},
    }
    assert lines[("rate",)] == 1
    assert lines[("words", 2)] == 2
    assert lines[("map", "n")] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"line 3: 'a' was given before, in line 1"),
        ("a: &x [1]\nb: *x\n", r"line 1: not valid YAML: anchors, aliases and tags are not read"),
        ("a: 1\nb: *x\n", r"line 2: not valid YAML: anchors, aliases and tags are not read"),
        ("a: !!bool maybe\n", r"anchors, aliases and tags are not read"),
        ("a: !!int ''\n", r"anchors, aliases and tags are not read"),
        ("a: !!timestamp soon\n", r"anchors, aliases and tags are not read"),
        ("a: !!python/object/apply:os.system [ls]\n", r"anchors, aliases and tags are not read"),
        ("a: [1\nb: 2\n", r"line 2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", r"not valid YAML: but found another document"),
        ("? [1]\n: 2\n", r"line 1: a key must be a word"),
        ("", r"is empty"),
        ("a: " + "[" * 5000, r"nested too deeply"),
        ("a: " + "[" * 100 + "]" * 100, r"nested too deeply to be read, in more than 100 levels"),
        (f"a: {'9' * 5000}\n", r"a value cannot be read"),
        ("a: 1\nb: [.nan, 4.0]\n", r"line 2, b\.0: \.nan is not a finite number; give one, or leave it out"),
        ("a:\n  b: -.inf\n", r"line 2, a\.b: -\.inf is not a finite number"),
        ("a: 1e999\n", r"line 1, a: 1e999 is not a finite number"),
    ],
)
def test_bad_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_yaml(written(text))


def test_missing_large_and_binary_files_are_refused() -> None:
    with pytest.raises(InputError, match=r"There is no file nowhere\.yaml"):
        read_yaml("nowhere.yaml")
    with pytest.raises(InputError, match="larger than 1 MB"):
        read_yaml(written("a" * (2**20 + 1)))
    Path("spec.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(InputError, match=r"not UTF-8 text \(byte 3\)"):
        read_yaml("spec.yaml")


def test_a_good_file_becomes_the_model() -> None:
    path = written("name: x\nparts:\n  - size: 3\nrate: 1e-2\n")
    whole = validated(Whole, *read_yaml(path), path)
    assert whole == Whole(name="x", parts=[Part(size=3)], rate=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: x\nparts:\n  - size: 3\n  - size: 0\n",
            r"spec.yaml: line 4, parts.1.size: .*greater than 0, got '0'",
        ),
        ("name: x\ncolour: red\n", r"line 2, colour: there is no such field"),
        ("parts: []\n", r"line 1, name: this field is missing"),
        ("name: x\nrate: fast\n", r"line 2, rate: .*number.*got 'fast'"),
        ("name: empty\nparts:\n - size: 1\n", r"line 1, the file: parts were given for an empty whole\.$"),
        ("- 1\n", r"a mapping of fields was expected, got list"),
        (
            "name: x\nparts:\n" + "  - {}\n" * 7,
            r"line 3, parts.0.size: this field is missing; .*and 2 more\.",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_line_and_field(text: str, message: str) -> None:
    path = written(text)
    with pytest.raises(InputError, match=message):
        validated(Whole, *read_yaml(path), path)
