import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.data.sources.published_formats import read_cifar, read_idx, read_mat

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar(tmp_path: Path, label_bytes: int) -> None:
    images, labels = RANDOM.integers(0, 256, (7, 32, 32, 3), np.uint8), RANDOM.integers(0, 100, 7, np.uint8)
    records = b"".join(
        bytes([99] * (label_bytes - 1) + [label]) + b"".join(image[:, :, channel].tobytes() for channel in range(3))
        for image, label in zip(images, labels.tolist(), strict=True)
    )
    half = 3 * (label_bytes + 3072)
    (tmp_path / "1").write_bytes(records[:half])
    (tmp_path / "2").write_bytes(records[half:])
    found = read_cifar([tmp_path / "1", tmp_path / "2"], label_bytes)
    assert np.array_equal(found[0], images)
    assert np.array_equal(found[1], labels)
    (tmp_path / "2").write_bytes(records[half:-1])
    with pytest.raises(ValueError, match="no whole number of"):
        read_cifar([tmp_path / "1", tmp_path / "2"], label_bytes)


@pytest.mark.parametrize("shape", [(9,), (5, 4, 3)])
@pytest.mark.parametrize("packed", [True, False])
def test_idx(tmp_path: Path, shape: tuple[int, ...], packed: bool) -> None:
    values = RANDOM.integers(0, 256, shape, np.uint8)
    data = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values.tobytes()
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert np.array_equal(read_idx(path), values)
    path.write_bytes(gzip.compress(data[:-1]) if packed else data[:-1])
    with pytest.raises(ValueError, match="are announced"):
        read_idx(path)
    path.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(ValueError, match=r"unpacked|not an IDX"):
        read_idx(path)


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.from_regex("[a-z]{1,20}", fullmatch=True), st.lists(st.integers(0, 65535), min_size=1), min_size=1
    ),
    st.booleans(),
    st.sampled_from(["u1", "u2", "i4", "f8"]),
)
def test_mat_as_scipy_writes_it(tmp_path_factory, arrays, compress, kind) -> None:  # type: ignore[no-untyped-def]
    scipy_io = pytest.importorskip("scipy.io")
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    values = {name: np.array(numbers).astype(kind) for name, numbers in arrays.items()}
    scipy_io.savemat(path, values, do_compression=compress)
    found = read_mat(path)
    assert found.keys() == values.keys()
    for name, numbers in values.items():
        assert np.array_equal(found[name], numbers)


def test_not_a_mat(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(b"MATLAB 7.3 and something else" * 10)
    with pytest.raises(ValueError, match="not a MATLAB 5 file"):
        read_mat(tmp_path / "a.mat")
    (tmp_path / "a.mat").write_bytes(b"MATLAB 5.0".ljust(126) + b"IM" + b"\x0f\0\0\0\x10\0\0\0nonsensenonsense")
    with pytest.raises(ValueError, match="cannot be read as a MATLAB file"):
        read_mat(tmp_path / "a.mat")
