import numpy as np
import pytest
import torch

from attnlimit.errors import InputError
from attnlimit.inputs import as_count, as_counts, as_float, as_generator, as_points, as_positive


@pytest.mark.parametrize("value", [1, 1.5, [1, 2], [[1.0], [2.0]], (0.5, 1)])
def test_plain_numbers_become_double(value: object) -> None:
    tensor = as_float(value, "x")
    assert tensor.dtype == torch.float64
    assert tensor.tolist() == torch.tensor(value, dtype=torch.float64).tolist()
    assert as_float(value, "x", dtype=torch.float32).dtype == torch.float32


def test_tensors_are_passed_through_and_arrays_share_memory() -> None:
    tensor, array = torch.ones(2), np.ones(2, dtype=np.float32)
    assert as_float(tensor, "x") is tensor
    array[0] = 5
    assert as_float(array, "x").tolist() == [5, 1]
    assert as_float(array, "x").data_ptr() == array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3)[::-1], np.arange(6.0).reshape(2, 3).T, np.arange(6.0)[::2]],
    ids=["reversed", "transposed", "strided"],
)
@pytest.mark.parametrize("writeable", [True, False])
def test_arrays_of_any_layout(array: np.ndarray, writeable: bool) -> None:
    array = array[:]
    array.flags.writeable = writeable
    assert as_float(array, "x").tolist() == array.tolist()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, dtype=torch.int64), r"x must be floating point, got torch\.int64.*e\.g\. x\.double\(\)"),
        (torch.ones(2, dtype=torch.bool), r"x must be floating point, got torch\.bool"),
        (torch.ones(2, dtype=torch.complex64), r"x must be floating point, got torch\.complex64"),
        (np.ones(2, dtype=np.int32), r"x must be floating point, got torch\.int32"),
        (np.array(["a"]), "x must be an array of numbers, got dtype <U1"),
        (np.array([object()]), "x must be an array of numbers, got dtype object"),
        (torch.ones(2), r"x has dtype torch\.float32, but the rest is torch\.float64: mixing dtypes would lose"),
        (np.ones(2, dtype=np.float32), r"x has dtype torch\.float32, but the rest is torch\.float64"),
        (torch.ones(2, dtype=torch.float64, device="meta"), r"x is on meta, but the rest is on cpu: move one.*x\.to\('cpu'\)"),
        ([1.0, float("nan")], "x has 1 entries that are nan or infinite out of 2: clean or drop them"),
        (np.array([np.inf, -np.inf, 1.0]), "x has 2 entries that are nan or infinite out of 3"),
        ([[1.0], [1.0, 2.0]], r"x must be numbers in a rectangular array, got \[\[1\.0\], \[1\.0, 2\.0\]\]"),
        (["a"], "x must be numbers in a rectangular array"),
    ],
)  # fmt: skip
def test_what_is_not_a_finite_floating_array(value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_float(value, "x", dtype=torch.float64, device="cpu")


def test_points_have_the_dimension_last() -> None:
    assert as_points([1.0, 2.0], 2, "x").shape == (2,)
    assert as_points(torch.ones(4, 0, 2), 2, "x").shape == (4, 0, 2)
    assert as_points([1, 2], 2, "x", like=torch.ones(1)).dtype == torch.float32
    for bad in ([1.0, 2.0, 3.0], 1.0, [[1.0], [2.0]]):
        with pytest.raises(
            InputError, match=r"x must have shape \(\*batch, 2\), got .*the last axis is the dimension"
        ):
            as_points(bad, 2, "x")


@pytest.mark.parametrize("n", [1, 7, 1e6, np.int64(3), np.float64(4), 10**12])
def test_counts(n: object) -> None:
    assert as_count(n) == n
    assert type(as_count(n)) is int
    assert as_counts(n) == [n]


@pytest.mark.parametrize("n", [0, -3, 2.5, True, "7", None, float("nan"), float("inf"), -float("inf")])
def test_what_is_no_count(n: object) -> None:
    with pytest.raises(InputError, match=f"size must be a whole number of at least 1, got {n!r}"):
        as_count(n, "size")


@pytest.mark.parametrize("n", [[1, 10], (1, 10), np.array([1, 10]), torch.tensor([1, 10]), range(1, 11, 9)])
def test_several_counts(n: object) -> None:
    assert as_counts(n) == [1, 10]


def test_no_counts() -> None:
    with pytest.raises(InputError, match="n is empty: give at least one number of tokens"):
        as_counts([])
    with pytest.raises(InputError, match=r"n must be a whole number of at least 1, got 0\.5"):
        as_counts([1, 0.5])


def test_positive_numbers() -> None:
    assert as_positive(np.float32(0.5), "x") == 0.5
    assert type(as_positive(3, "x")) is float
    for bad in (0, -1.0, float("inf"), float("nan"), True, "1", None):
        with pytest.raises(InputError, match=f"x must be a finite number above 0, got {bad!r}"):
            as_positive(bad, "x")


def test_generators() -> None:
    generator = torch.Generator().manual_seed(5)
    assert as_generator(generator) is generator
    draws = [torch.rand(3, generator=as_generator(seed)) for seed in (5, np.int64(5))]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], torch.rand(3, generator=generator))
    for bad in (True, 1.5, "seed", None):
        with pytest.raises(
            InputError, match=rf"generator must be a torch\.Generator or a seed \(int\), got {bad!r}"
        ):
            as_generator(bad)


@pytest.mark.parametrize("name", ["a\nb\r\x1b[31m\u202e<b>", "x" * 100_000, "\ud800"])
def test_messages_are_one_short_line_whatever_was_named(name: str) -> None:
    with pytest.raises(InputError, match=r"^There is no \S.* Give one\.$") as refused:
        raise InputError(f"There is no !{name}. Give one.")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2100
