from pathlib import Path

import numpy as np
import pytest

from vitreous.data.open import open_data
from vitreous.data.sources.base import ArraySource

RANDOM = np.random.default_rng(0)


def noise(count: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, (count, *shape), np.uint8)


@pytest.mark.parametrize(
    "keys", [("x_train", "y_train", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels")]
)
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (6, 5, 3)])
def test_train_and_test_splits(tmp_path: Path, keys: tuple[str, ...], shape: tuple[int, ...]) -> None:
    x, y, x_test, y_test = (
        noise(20, *shape),
        np.arange(20) % 12,
        noise(12, *shape),
        np.arange(12)[:, None],
    )
    np.savez(tmp_path / "a.npz", **dict(zip(keys, (x, y, x_test, y_test), strict=True)))
    data = open_data(str(tmp_path / "a.npz"))
    assert isinstance(data.train, ArraySource)
    assert isinstance(data.val, ArraySource)
    assert np.array_equal(data.train.images, x.reshape(20, 6, 5, -1))
    assert np.array_equal(data.val.images, x_test.reshape(12, 6, 5, -1))
    assert data.classes == tuple(map(str, range(12)))
    assert np.array_equal(data.train.labels, y)
    assert np.array_equal(data.val.labels, np.arange(12))
    assert data.test is None
    assert "test split is used as val" in data.note
    assert data.val.name(3) == "a/test[3]"


def test_three_splits(tmp_path: Path) -> None:
    parts = {f"x_{part}": noise(4, 2, 2) for part in ("train", "val", "test")}
    labels = {f"y_{part}": np.array([0, 1, 0, 1]) for part in ("train", "val", "test")}
    np.savez_compressed(tmp_path / "a.npz", **parts, **labels)
    data = open_data(str(tmp_path / "a.npz"))
    assert data.test is not None
    assert np.array_equal(data.test.image(1), parts["x_test"][1][..., None])


@pytest.mark.parametrize("keys", [("images", "labels"), ("X", "Y"), ("data", "target"), ("x_train", "y_train")])
def test_single_split_is_divided(tmp_path: Path, keys: tuple[str, str]) -> None:
    x = noise(20, 4, 4)
    np.savez(tmp_path / "a.npz", **{keys[0]: x, keys[1]: np.array(["b", "a"] * 10), "mean": np.zeros(3)})
    data = open_data(str(tmp_path / "a.npz"))
    assert data.classes == ("a", "b")
    assert (len(data.train), len(data.val)) == (16, 4)
    for source in (data.train, data.val):
        for i in range(len(source)):
            original = int(source.name(i).split("[")[1].rstrip("]"))
            assert np.array_equal(source.image(i), x[original][..., None])
            assert source.labels[i] == 1 - original % 2


def test_class_names_are_read_from_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=noise(6, 2, 2), y=np.array([1, 0] * 3), classes=np.array(["zebra", "ant"]))
    data = open_data(str(tmp_path / "a.npz"))
    assert data.classes == ("zebra", "ant")
    assert sorted(data.train.labels.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": noise(4, 2, 2)}, "x_train and y_train.* got 'x_train'"),
        ({"a": np.zeros(3)}, "expected .* got 'a'"),
        (
            {"x": noise(4, 2, 2).astype(np.float32), "y": np.zeros(4, int)},
            r"images must be uint8 .* got float32 \[4, 2, 2, 1\]",
        ),
        (
            {"x": noise(4, 3, 8, 8), "y": np.zeros(4, int)},
            r"images must be uint8 \[n, h, w\].* got uint8 \[4, 3, 8, 8\]",
        ),
        (
            {"x": noise(4, 2, 2), "y": np.zeros(3, int)},
            r"labels must be integers or strings .* got int64 \[3\]",
        ),
        ({"x": noise(4, 2, 2), "y": np.zeros((4, 3), int)}, r"labels must be .* got int64 \[4, 3\]"),
        ({"x": noise(4, 2, 2), "y": np.zeros(4, int)}, "only one class, '0'"),
        ({"x": noise(0, 2, 2), "y": np.zeros(0, int)}, "is empty"),
        (
            {"x": noise(2, 2, 2), "images": noise(2, 2, 2), "y": np.array([0, 1])},
            "array 'images' duplicates another array",
        ),
        (
            {"x": noise(2, 2, 2), "y": np.array([0, 5]), "classes": np.array(["a", "b"])},
            "labels must be from 0 to 1, got '5'",
        ),
        (
            {"x": noise(2, 2, 2), "y": np.array([{}, 1], dtype=object)},
            "cannot be read as arrays: Object arrays cannot",
        ),
    ],
)
def test_invalid_arrays_are_rejected(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        open_data(str(tmp_path / "a.npz"))


def test_file_that_is_not_npz_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK nonsense")
    with pytest.raises(ValueError, match=r"a.npz cannot be read as arrays"):
        open_data(str(tmp_path / "a.npz"))
