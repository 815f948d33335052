"""Rows of .npy and .safetensors files: the same numbers as were written, and a clear refusal of the rest."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnlimit.errors import InputError
from attnlimit.files.arrays import open_rows

CODES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor], padding: int = 0) -> None:
    """The format itself: length of the header, JSON header, bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        code = CODES.get(tensor.dtype, "I64")
        header[name] = {
            "dtype": code,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    write_raw_safetensors(path, json.dumps(header) + " " * padding, data)


def write_raw_safetensors(path: Path, header: str, data: bytes) -> None:
    encoded = header.encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


@pytest.fixture
def matrix(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(1000, 7, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_rows_are_those_written(matrix, dtype, version):
    rows = matrix.to(dtype)
    with Path("a.npy").open("wb") as file:
        np.lib.format.write_array(file, rows.numpy(), version=version)
    file = open_rows("a.npy")
    assert (file.shape, file.dtype, len(file)) == ((1000, 7), dtype, 1000)
    assert torch.equal(file.rows(0, 1000), rows)
    assert torch.equal(file.rows(999, 1000), rows[999:])


@pytest.mark.parametrize("dtype", list(CODES))
@pytest.mark.parametrize("padding", range(4))
def test_safetensors_rows_are_those_written_also_when_not_aligned(matrix, dtype, padding):
    rows = matrix.to(dtype)
    write_safetensors(
        Path("a.safetensors"), {"before": matrix[:1], "keys": rows, "after": matrix}, padding=padding
    )
    file = open_rows(Path("a.safetensors"), "keys")
    assert (file.shape, file.dtype) == ((1000, 7), dtype)
    assert torch.equal(file.rows(0, 1000), rows)
    assert torch.equal(file.rows(3, 5), rows[3:5])


def test_a_single_tensor_needs_no_name(matrix):
    write_safetensors(Path("a.safetensors"), {"keys": matrix})
    assert torch.equal(open_rows("a.safetensors").rows(0, 1000), matrix)


@pytest.mark.parametrize("size", [1, 7, 999, 1000, 5000])
def test_blocks_are_all_rows_in_order(matrix, size):
    np.save("a.npy", matrix.numpy())
    blocks = list(open_rows("a.npy").blocks(size))
    assert all(len(block) == size for block in blocks[:-1])
    assert 1 <= len(blocks[-1]) <= size
    assert torch.equal(torch.cat(blocks), matrix)


def test_writing_to_a_block_leaves_the_file_alone(matrix):
    np.save("a.npy", matrix.numpy())
    before = Path("a.npy").read_bytes()
    open_rows("a.npy").rows(0, 10).zero_()
    assert Path("a.npy").read_bytes() == before


def test_a_map_is_closed_with_its_tensor(matrix):
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    np.save("a.npy", matrix.numpy())
    for block in open_rows("a.npy").blocks(10):
        mapped = Path("/proc/self/maps").read_text().count("a.npy")
        assert mapped <= 2  # this block, and the one before until its name is taken over
        del block
    assert "a.npy" not in Path("/proc/self/maps").read_text()


# --- refusals ---------------------------------------------------------------------------------------


def test_missing_file():
    with pytest.raises(InputError, match=r"no file .*nowhere\.npy"):
        open_rows("nowhere.npy")
    with pytest.raises(InputError, match="no file xxx"):
        open_rows("x" * 300)


def test_not_a_file():
    Path("d.npy").mkdir()
    os.mkfifo("f.npy")
    for name in ("d.npy", "f.npy", ""):
        with pytest.raises(InputError, match=r"is a folder, pipe or device: name a \.npy or \.safetensors"):
            open_rows(name)


def test_other_suffix(matrix):
    torch.save(matrix, "a.pt")
    with pytest.raises(InputError, match=r"a\.pt is neither \.npy nor \.safetensors"):
        open_rows("a.pt")


@pytest.mark.parametrize("suffix", ["npy", "safetensors"])
def test_truncated_data(matrix, suffix):
    path = Path(f"a.{suffix}")
    np.save("a.npy", matrix.numpy())
    write_safetensors(Path("a.safetensors"), {"keys": matrix})
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=f"cut short: {size - 1} bytes, {size} expected"):
        open_rows(path)


def test_column_major(matrix):
    np.save("a.npy", np.asfortranarray(matrix.numpy()))
    with pytest.raises(InputError, match="column-major <f8 data; row-major little-endian floats"):
        open_rows("a.npy")


@pytest.mark.parametrize("dtype", ["<i8", ">f8", "<c16", "|b1", "|O"])
def test_npy_that_is_not_little_endian_floats(dtype):
    np.save("a.npy", np.zeros((3, 2), dtype), allow_pickle=True)
    with pytest.raises(InputError, match=rf"holds {dtype.replace('|', '.')} data; row-major"):
        open_rows("a.npy")


def test_safetensors_of_integers():
    write_safetensors(Path("a.safetensors"), {"ids": torch.zeros(3, 2, dtype=torch.int64)})
    with pytest.raises(InputError, match=r"'ids' of a\.safetensors is I64; F64, F32, F16 and BF16 are read"):
        open_rows("a.safetensors")


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 3), (3, 0)])
@pytest.mark.parametrize("suffix", ["npy", "safetensors"])
def test_not_a_matrix(shape, suffix):
    np.save("a.npy", np.zeros(shape))
    write_safetensors(Path("a.safetensors"), {"x": torch.zeros(shape or (1,), dtype=torch.float64)})
    with pytest.raises(InputError, match=r"non-empty matrix \(tokens, dimension\), got shape"):
        open_rows(f"a.{suffix}")


def test_several_tensors_without_a_name(matrix):
    write_safetensors(Path("a.safetensors"), {f"k{i}": matrix[:1] for i in range(12)})
    with pytest.raises(InputError, match=r"holds 12 tensors \(k0, .*, k9, …\): name one"):
        open_rows("a.safetensors")


def test_no_tensor_at_all():
    write_safetensors(Path("a.safetensors"), {})
    with pytest.raises(InputError, match="holds 0 tensors"):
        open_rows("a.safetensors")


@pytest.mark.parametrize("name", ["values", "__metadata__", ""])
def test_a_name_that_is_not_there(matrix, name):
    write_safetensors(Path("a.safetensors"), {"keys": matrix})
    with pytest.raises(InputError, match=f"no tensor '{name}'; it has keys"):
        open_rows("a.safetensors", name)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x93NUMPY\x09\x00", b"not an array at all"])
def test_npy_that_is_not_one(content):
    Path("a.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"not a \.npy file, or its header is corrupt"):
        open_rows("a.npy")


@pytest.mark.parametrize("header", ["", "{", "[1, 2]", "nonsense", "[" * 100_000])
def test_safetensors_whose_header_cannot_be_read(header):
    write_raw_safetensors(Path("a.safetensors"), header, bytes(64))
    with pytest.raises(InputError, match="its header cannot be read"):
        open_rows("a.safetensors")


def test_safetensors_whose_header_is_longer_than_the_file():
    Path("a.safetensors").write_bytes((10**15).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match="its header cannot be read"):
        open_rows("a.safetensors")


@pytest.mark.parametrize(
    "entry",
    [
        "null",
        "{}",
        '{"dtype": "F32", "shape": [2, 2]}',
        '{"dtype": "F32", "shape": "22", "data_offsets": [0, 16]}',
        '{"dtype": "F32", "shape": [2.0, 2.0], "data_offsets": [0, 16]}',
        '{"dtype": "F32", "shape": [2, 2], "data_offsets": [-4, 12]}',
        '{"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 0]}',
        '{"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}',
        '{"dtype": ["F32"], "shape": [2, 2], "data_offsets": [0, 16]}',
    ],
)
def test_safetensors_with_a_corrupt_entry(entry):
    write_raw_safetensors(Path("a.safetensors"), f'{{"x": {entry}}}', bytes(64))
    with pytest.raises(InputError, match="entry 'x' is corrupt"):
        open_rows("a.safetensors")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(header=st.one_of(st.text(max_size=40), st.from_regex(r"\{'descr': ?.{0,12}, 'shape': .{0,12}\}")))
def test_no_header_gets_past_as_anything_but_an_input_error(header):
    encoded = header.encode()
    Path("a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded)
    with pytest.raises(InputError, match="header is corrupt"):
        open_rows("a.npy")
    write_raw_safetensors(Path("a.safetensors"), header, b"")
    with pytest.raises(InputError, match="cannot be read"):
        open_rows("a.safetensors")
