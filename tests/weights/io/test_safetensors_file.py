import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.safetensors_file import Entry, check_tensors, read_header, read_tensors, write_tensors

TENSORS = {
    "a": torch.randn(2, 3),
    "b.c": torch.randn(4).bfloat16(),
    "scalar": torch.tensor(1.5),
    "transposed": torch.randn(3, 5).T,
    "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


def test_written_tensors_are_read_back(tmp_path: Path) -> None:
    write_tensors(TENSORS, tmp_path / "x")
    read = read_tensors(tmp_path / "x")
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    assert read_header(tmp_path / "x")["b.c"] == Entry("BF16", (4,))
    assert read_header(tmp_path / "x")["transposed"] == Entry("F32", (5, 3))


def test_files_are_exchanged_with_the_safetensors_library(tmp_path: Path) -> None:
    write_tensors(TENSORS, tmp_path / "saved")
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, tmp_path / "foreign")
    for read in (load_file(tmp_path / "saved"), read_tensors(tmp_path / "foreign")):
        assert read.keys() == TENSORS.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


def test_tensors_are_aligned_like_torch_allocations(tmp_path: Path) -> None:
    tensors = {f"{i}": torch.randn(i) for i in range(1, 200)} | {"x": torch.randn(48).half()}
    write_tensors(tensors, tmp_path / "x")
    mapped, read = load_file(tmp_path / "x"), read_tensors(tmp_path / "x")
    for name, tensor in tensors.items():
        assert read[name].data_ptr() % 64 == 0
        assert mapped[name].data_ptr() % 64 == 0 or tensor.nbytes % 64 != 0
    if (maps := Path("/proc/self/maps")).exists():
        assert str(tmp_path / "x") in maps.read_text()


def test_changes_are_not_written_to_the_file(tmp_path: Path) -> None:
    write_tensors(TENSORS, tmp_path / "x")
    read_tensors(tmp_path / "x")["a"].zero_()
    assert torch.equal(read_tensors(tmp_path / "x")["a"], TENSORS["a"])


def test_mapped_tensors_can_overwrite_their_file(tmp_path: Path) -> None:
    write_tensors(TENSORS, tmp_path / "x")
    write_tensors(read_tensors(tmp_path / "x"), tmp_path / "y")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    write_tensors({"a": torch.arange(5000.0)}, tmp_path / "x")
    read = read_tensors(tmp_path / "x")
    assert read["a"].sum() == torch.arange(5000.0).sum()
    read.forget()
    assert torch.equal(read["a"], torch.arange(5000.0))


def test_aligned_tensors_are_not_copied(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3), "b": torch.zeros(2000), "none": torch.zeros(0, 4)}, tmp_path / "x")
    read = read_tensors(tmp_path / "x", alignment=4)
    assert read["none"].shape == (0, 4)
    start = read["a"].data_ptr()
    assert read["b"].data_ptr() - start in (12, -8000)  # adjacent, as in the file
    assert read_tensors(tmp_path / "x")["b"].data_ptr() % 64 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems map such files only if swap space is large enough")
def test_files_larger_than_memory_are_mapped(tmp_path: Path) -> None:
    count = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # twice the memory
    header = {"a": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
    text = json.dumps(header).encode().ljust(120)
    with open(tmp_path / "x", "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + 4 * count)  # a sparse file, without data
    assert read_header(tmp_path / "x")["a"].shape == (count,)
    read = read_tensors(tmp_path / "x")["a"]
    read[0] = 1
    assert (len(read), read[0].item(), read[-1].item()) == (count, 1, 0)


def test_other_dtypes_are_read(tmp_path: Path) -> None:
    tensors = {
        "steps": torch.tensor([1, 2]),
        "mask": torch.tensor([True, False]),
        "tiny": torch.zeros(2).to(torch.float8_e5m2),
    }
    save_file(tensors, tmp_path / "x")
    assert {name: x.dtype for name, x in read_tensors(tmp_path / "x").items()} == {
        k: x.dtype for k, x in tensors.items()
    }


@pytest.mark.parametrize("length", [0, 7, 8, 50, -1])
def test_error_names_the_truncated_file(tmp_path: Path, length: int) -> None:
    write_tensors(TENSORS, tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(whole[:length])
    for read in (read_header, read_tensors):
        with pytest.raises(BadCheckpoint, match="x cannot be read: "):
            read(tmp_path / "x")


def test_error_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="y cannot be read: "):
        read_header(tmp_path / "y")


def test_all_differences_are_listed_in_one_line() -> None:
    found = {"head.weight": Entry("F32", (3, 4)), "head.bais": Entry("F32", (3,)), "norm": Entry("I64", (2,))}
    expected = {"head.weight": (5, 4), "head.bias": (3,), "norm": (2,), **{f"layer{i}": (1,) for i in range(9)}}
    with pytest.raises(BadCheckpoint) as error:
        check_tensors(Path("x"), found, expected)
    assert str(error.value) == (
        "x does not match the model: "
        "10 missing: head.bias, layer0, layer1, layer2, layer3 and 5 more; "
        "1 unexpected: head.bais (did you mean 'head.bias'?); "
        "1 with the wrong shape: head.weight is [3, 4], expected [5, 4]; "
        "1 with an unsupported dtype: norm is I64, expected one of F64, F32, F16, BF16"
    )


def test_matching_tensors_pass() -> None:
    check_tensors(Path("x"), {"a": Entry("BF16", (1,))}, {"a": (1,)})
