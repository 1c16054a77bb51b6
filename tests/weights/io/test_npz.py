import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from corrupted_files import check_read_or_rejected, damaged
from handmade_pickles import zip_of
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.npz import read_npz, write_npz

ARRAYS = {
    "opt/target/cls": np.arange(6, dtype="<f4").reshape(1, 2, 3),
    "double": np.arange(4, dtype="<f8"),
    "half": np.arange(4, dtype="<f2"),
    "big": np.arange(6, dtype=">f4").reshape(2, 3),
    "big/complex": np.array([1 + 2j, 3 - 4j], ">c16"),
    "fortran": np.asfortranarray(np.arange(24, dtype="<i8").reshape(2, 3, 4)),
    "fortran/big": np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
    "scalar": np.array(2.5, "f4"),
    "empty": np.zeros((3, 0, 2), "u1"),
    "bool": np.array([[True], [False]]),
    "unsigned": np.array([65535], "u2"),
    "ä": np.array([-1], "i1"),
}
TENSORS = {
    "a": torch.randn(2, 3),
    "b/c": torch.randn(4).bfloat16(),
    "scalar": torch.tensor(1.5),
    "bf16 scalar": torch.tensor(1.5).bfloat16(),
    "transposed": torch.randn(3, 5).T,
    "parameter": torch.nn.Parameter(torch.randn(3)),
    "empty": torch.empty(0, 3),
    "bool": torch.tensor([True, False]),
    "int": torch.arange(3),
}


def npy(array: np.ndarray, **options: bool) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def headed(header: str, data: bytes = bytes(8), version: int = 1) -> bytes:
    text = header.encode("latin-1")
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return zip_of({"w.npy": b"\x93NUMPY" + bytes([version, 0]) + length + text + data})


def header(kind: str = "<f4", shape: str = "(2,)", fortran: str = "False") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


# ---- Reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_files_are_read_like_numpy_load(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "x.npz", **ARRAYS)
    found = read_npz(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as expected:
        assert list(found) == list(expected)
        for name, tensor in found.items():
            assert tensor.is_contiguous()
            assert tensor.numpy().dtype == expected[name].dtype.newbyteorder("=")
            np.testing.assert_array_equal(tensor.numpy(), expected[name])


@pytest.mark.parametrize("kind", ["<V2", "|V2", "bfloat16"])
def test_bfloat16_stored_as_two_untyped_bytes_is_read(tmp_path: Path, kind: str) -> None:
    """`np.savez` writes the first with ml_dtypes 0.6 (jax); numpy converts it to the second."""
    (tmp_path / "x.npz").write_bytes(headed(header(kind, "(4,)"), b"\x00\x00\x80?\x00@@@"))
    found = read_npz(tmp_path / "x.npz")["w"]
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("shape", ["(2,)", "(2L,)", "(1, 2)", "(2,1)"])
def test_headers_written_by_other_libraries_are_read(tmp_path: Path, shape: str, version: int) -> None:
    data = struct.pack("<2f", 1, 2)
    (tmp_path / "x.npz").write_bytes(headed(header(shape=shape).replace(", }", "}"), data, version))
    assert read_npz(tmp_path / "x.npz")["w"].flatten().tolist() == [1, 2]


@pytest.mark.slow
def test_small_constant_array_is_not_a_zip_bomb(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", zeros=np.zeros(2**23, "f4"))
    assert read_npz(tmp_path / "x.npz")["zeros"].count_nonzero() == 0


# ---- Writing ---------------------------------------------------------------------------------------------------------


def test_written_tensors_are_read_back(tmp_path: Path) -> None:
    write_npz(TENSORS, tmp_path / "x.npz")
    found = read_npz(tmp_path / "x.npz")
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_numpy_reads_written_files(tmp_path: Path) -> None:
    write_npz(TENSORS, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as found:
        for name, tensor in TENSORS.items():
            if tensor.dtype == torch.bfloat16:
                assert found[name].dtype == np.dtype("V2")
                assert found[name].tobytes() == tensor.view(torch.int16).numpy().tobytes()
            else:
                np.testing.assert_array_equal(found[name], tensor.detach().numpy(), strict=True)
    assert zipfile.ZipFile(tmp_path / "x.npz").testzip() is None


def test_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    write_npz(TENSORS, tmp_path / "x.npz")
    write_npz(read_npz(tmp_path / "x.npz"), tmp_path / "y.npz")
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "y.npz").read_bytes()


def test_error_names_dtype_unsupported_by_numpy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"w is torch.float8_e4m3fn, which npz does not support; .* bool, int8"):
        write_npz({"a": torch.ones(1), "w": torch.ones(1).to(torch.float8_e4m3fn)}, tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()


# ---- Invalid files ---------------------------------------------------------------------------------------------------


def compressed(**arrays: bytes) -> bytes:
    return zip_of({f"{name}.npy": data for name, data in arrays.items()}, zipfile.ZIP_DEFLATED)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


WHOLE = zip_of({"w.npy": npy(np.ones(100))})
BAD = {
    "nothing": (b"", "is not a complete zip file"),
    "no zip": (npy(np.ones(3)), "is not a complete zip file"),
    "a cut zip": (WHOLE[:-30], "is not a complete zip file"),
    "damage": (flipped(WHOLE, 300), "contains w.npy, which is damaged: Bad CRC-32"),
    "damage, compressed": (
        flipped(compressed(w=npy(np.random.default_rng(0).random(99))), 300),
        "contains w.npy, which is damaged",
    ),
    "objects": (
        zip_of({"w.npy": npy(np.array([print], object), allow_pickle=True)}),
        r"an array of Python objects, .*no code in it was executed.*w.npy",
    ),
    "text": (zip_of({"w.npy": npy(np.array(["cat"]))}), "unsupported dtype '<U3'"),
    "records": (zip_of({"w.npy": npy(np.zeros(2, "i4,f4"))}), "contains w.npy, which is not a numeric array"),
    "dates": (zip_of({"w.npy": npy(np.zeros(2, "M8[s]"))}), "dtype '<M8"),
    "code": (headed("{'descr': __import__('os').system('touch canary')}"), "not a numeric array"),
    "another member": (zip_of({"w.npy": npy(np.ones(1)), "evil.pkl": b"x"}), "contains evil.pkl; only"),
    "no array": (zip_of({"w.npy": b"x" * 99}), "contains w.npy, which is not a numeric array"),
    "an empty member": (zip_of({"w.npy": b""}), "contains w.npy, which is not a numeric array"),
    "a long header": (headed(" " * 20_000), "not a numeric array"),
    "a larger shape": (headed(header(shape="(3,)")), r"shape \[3\] requires"),
    "a smaller shape": (headed(header(shape="(1,)")), r"shape \[1\] requires"),
    "a trillion": (headed(header(shape="(1000000000000,)")), "requires 4,000,000,000"),
    "an overflow": (headed(header(shape="(4294967296, 4294967296)")), "the invalid shape"),
    "a negative shape": (headed(header(shape="(-1,)")), "not a numeric array"),
    "endless digits": (headed(header(shape="(" + "1" * 9000 + ",)")), "not a numeric array"),
    "a bomb": (
        compressed(w=npy(np.zeros(2**25, "f4"))),
        "would unpack from 130,.* bytes to 134,217,856 .* 100 times",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_file_is_rejected_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    data, reason = BAD[name]
    monkeypatch.chdir(tmp_path)
    Path("x.npz").write_bytes(data)
    with pytest.raises(BadCheckpoint, match=f"^x.npz {reason}|^x.npz .*{reason}") as error:
        read_npz(Path("x.npz"))
    assert "\n" not in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["x.npz"]


def test_members_that_declare_a_wrong_size_are_rejected(tmp_path: Path) -> None:
    """The zip directory declares more bytes than the file has."""
    data = bytearray(compressed(w=npy(np.zeros(2**20, "f4"))))
    place = data.rindex(b"PK\1\2") + 24
    struct.pack_into("<I", data, place, struct.unpack_from("<I", data, place)[0] + 4)
    (tmp_path / "x.npz").write_bytes(bytes(data).replace(b"(1048576,)", b"(1048577,)"))
    with pytest.raises(BadCheckpoint, match=r"contains w.npy"):
        read_npz(tmp_path / "x.npz")


def test_error_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"y.npz cannot be read: No such file"):
        read_npz(tmp_path / "y.npz")


def _samples() -> list[bytes]:
    samples = []
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, **ARRAYS)
        samples.append(stream.getvalue())
    return samples


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=damaged(_samples()))
def test_damage_is_detected_or_harmless(tmp_path: Path, data: bytes) -> None:
    check_read_or_rejected(read_npz, tmp_path / "x", data)
