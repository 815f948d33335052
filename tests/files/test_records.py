"""Records on disk: whole or not at all, strict, and the same from CSV and parquet."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from attnlimit.errors import CannotWrite, InputError
from attnlimit.files.records import can_write, finite, replacing, write_json, write_table
from attnlimit.files.tensors import read_tensors, write_tensors
from attnlimit.report.figures.style import axes, save


def _half(path: Path) -> None:
    path.write_text("half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_only_once_it_is_whole():
    Path("a.txt").write_text("old")
    with pytest.raises(CannotWrite, match="No space left"), replacing("a.txt") as new:
        _half(new)
    assert Path("a.txt").read_text() == "old"
    with replacing("a.txt") as new:
        new.write_text("new")
        assert Path("a.txt").read_text() == "old"
    assert Path("a.txt").read_text() == "new"
    assert [path.name for path in Path.cwd().iterdir()] == ["a.txt"]  # nothing is left behind


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.json", lambda path: write_json(path, {"a": [1] * 5000})),
        ("a.csv", lambda path: write_table(path, [{"a": k} for k in range(5000)])),
        ("a.parquet", lambda path: write_table(path, [{"a": k} for k in range(5000)])),
        ("a.safetensors", lambda path: write_tensors(path, {"a": torch.zeros(5000)}, {})),
        ("a.png", lambda path: save(axes()[0], path)),
    ],
)
def test_every_writer_says_that_the_system_takes_no_more(name, write):
    """Files that may not grow beyond 2,000 bytes stand for a full disk, whatever library writes them."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    Path(name).write_text("old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(CannotWrite, match=rf"{name} cannot be written: .*make room there"):
            write(Path(name))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Path(name).read_text() == "old"
    assert [path.name for path in Path.cwd().iterdir()] == [name]


def test_places_that_cannot_be_written():
    Path("folder").mkdir()
    Path("file").write_text("")
    for place in ("file/a.json", "file/b/a.json"):
        for write in (can_write, lambda path: write_json(path, {})):
            with pytest.raises(CannotWrite, match=rf"{place} cannot be written: .*Name another place"):
                write(place)
    with pytest.raises(InputError, match="folder is a folder"):
        write_json("folder", {})


WRITERS = pytest.mark.parametrize("write", [can_write, lambda path: write_json(path, {})])


@WRITERS
def test_only_files_are_replaced(write):
    os.mkfifo("pipe")
    Path("to_pipe").symlink_to("pipe")
    for name in ("pipe", "to_pipe"):
        with pytest.raises(
            CannotWrite, match=rf"{name} is a pipe, socket or device: give the name of a file"
        ):
            write(name)
    assert Path("pipe").is_fifo()
    for one, other in (("here", "there"), ("there", "here")):
        Path(one).symlink_to(other)
    with pytest.raises(CannotWrite, match="here cannot be written: Too many levels of symbolic links"):
        write("here")
    assert Path("here").is_symlink()


@WRITERS
@pytest.mark.parametrize("letters", [250, 300])
def test_a_name_that_is_too_long(write, letters):
    """With 250, only that of the file beside it."""
    with pytest.raises(CannotWrite, match="x cannot be written: File name too long"):
        write("x" * letters)


def test_the_file_behind_a_link_is_replaced_and_the_link_stays():
    Path("a.json").write_text("old")
    for link, file in (("to_file", "a.json"), ("to_nothing", "new/b.json")):
        Path(link).symlink_to(file)
        can_write(link)
        assert write_json(link, {}) == Path(link)
        assert Path(link).is_symlink()
        assert Path(file).read_text() == "{}\n"


def test_json_has_no_infinity():
    record = {"a": [1.5, math.inf, (math.nan, "ä")], 2: None}
    Path("a.json").write_text("{}")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json("a.json", record)
    assert Path("a.json").read_text() == "{}"
    write_json("a.json", finite(record))
    assert json.loads(Path("a.json").read_text()) == {"a": [1.5, None, [None, "ä"]], "2": None}


def test_tables_are_the_same_as_csv_and_parquet():
    rows = [
        {"n": 1, "x": 1, "w": "a"},
        {"n": 2, "x": 0.1, "w": 3, "more": True},
        {"n": 3, "x": None, "w": "b"},
    ]
    for name in ("a.csv", "a.parquet"):
        write_table(name, rows)
    with open("a.csv", encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["x"] for row in read] == ["1", "0.1", ""]
    same = pq.read_table("a.parquet").to_pydict()
    assert same == {"n": [1, 2, 3], "x": [1.0, 0.1, None], "w": ["a", "3", "b"], "more": [None, True, None]}


def test_no_bit_of_tensors_can_change_unseen():
    """Every byte of the file is tried, one of its bits after the other; a file without a seal, as others write it, is read."""
    path, tensors, header = (
        Path("a.safetensors"),
        {"a": torch.arange(3.0), "b": torch.tensor(True)},
        {"of": "it"},
    )
    write_tensors(path, tensors, header)
    assert [one.name for one in Path.cwd().iterdir()] == ["a.safetensors"]
    assert path.stat().st_mode == write_json("b.json", {}).stat().st_mode
    data, refused = path.read_bytes(), 0
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            found, words = read_tensors(path)
        except InputError:
            refused += 1
            continue
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], one) for name, one in tensors.items())
        assert words.items() >= header.items()
    assert refused > len(data) - 20  # but for the name of the seal, and blanks
    path.write_bytes(data[:-1] + b"\0")
    with pytest.raises(InputError, match=r"it is damaged, its bytes are not those that were written"):
        read_tensors(path)
    save_file(tensors, path, header)
    assert read_tensors(path)[1] == header
