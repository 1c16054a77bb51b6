"""Image folders. Opening a folder decodes no image, so most files here are not images."""

import contextlib
from pathlib import Path

import pytest

from vitreous.data.open import open_data
from vitreous.data.sources import base
from vitreous.data.sources.base import label_problems
from vitreous.data.sources.folders import open_folder


def fill(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


def contents(source) -> dict[str, str]:  # type: ignore[no-untyped-def]
    """Return the class of each file name, after checking the file contents."""
    assert all(source.image(i).decode() == source.name(i) for i in range(len(source)))
    return {source.name(i): source.classes[source.labels[i]] for i in range(len(source))}


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_train_and_val_folders(tmp_path: Path, val: str) -> None:
    fill(tmp_path, "train/dog/1.jpg", "train/cat/2.PNG", f"{val}/cat/3.webp", f"{val}/dog/4.bmp", "test/dog/5.tiff")
    data = open_data(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert contents(data.train) == {"train/dog/1.jpg": "dog", "train/cat/2.PNG": "cat"}
    assert contents(data.val) == {f"{val}/cat/3.webp": "cat", f"{val}/dog/4.bmp": "dog"}
    assert data.test is not None
    assert contents(data.test) == {"test/dog/5.tiff": "dog"}
    assert data.note == "train 2, val 2, test 1"


def test_class_folders_without_splits_are_split(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{name}/{i}.jpg" for name in ("b", "a", "c") for i in range(10)))
    data = open_data(str(tmp_path), val_fraction=0.3, seed=5)
    assert data.classes == ("a", "b", "c")
    assert (len(data.train), len(data.val)) == (21, 9)
    assert len(contents(data.train) | contents(data.val)) == 30
    assert data.train.labels.tolist() == [0] * 7 + [1] * 7 + [2] * 7
    again = open_data(str(tmp_path), val_fraction=0.3, seed=5)
    assert contents(again.val) == contents(data.val)


def test_train_without_val_is_split(tmp_path: Path) -> None:
    fill(tmp_path, *(f"train/{name}/{i}.jpg" for name in "ab" for i in range(5)))
    data = open_data(str(tmp_path))
    assert (len(data.train), len(data.val)) == (8, 2)


def test_nested_folders_are_read_and_other_files_ignored(tmp_path: Path) -> None:
    fill(tmp_path, "a/x/y/1.jpg", "a/x/2.jpg", "a/3.gif", "b/1.ppm", "b/z/2.jpeg")
    fill(tmp_path, "a/.4.jpg", "a/.hidden/5.jpg", "a/notes.txt", ".git/6.jpg", "b/jpg", "__MACOSX/a/._7.jpg")
    parts = open_folder(tmp_path).splits
    assert sorted(contents(parts["all"])) == ["a/3.gif", "a/x/2.jpg", "a/x/y/1.jpg", "b/1.ppm", "b/z/2.jpeg"]


def test_files_with_unsupported_extensions_are_counted_and_named(tmp_path: Path) -> None:
    images = [f"{name}/{i}.jpg" for name in "ab" for i in range(2)]
    fill(tmp_path, *images, "a/deep/3.jpegg", "b/IMG_4", "b/5.jpegg", "a/notes.txt", "readme.jpegg", "a/.hidden")
    data = open_data(str(tmp_path))
    assert len(data.train) + len(data.val) == 4
    assert "3 files" in data.note
    assert "2 .jpegg, 1 without extension" in data.note
    assert "a/deep/3.jpegg" in data.note
    fill(tmp_path / "raw", "c/1.raw")
    with pytest.raises(ValueError, match=r"c/1\.raw"):
        open_data(str(tmp_path / "raw"))


def test_heic_files_are_images_only_if_the_plugin_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, *(f"{name}/{i}.jpg" for name in "ab" for i in range(2)), "a/3.HEIC")
    for installed in (True, False):
        monkeypatch.setattr(base, "find_spec", lambda name, found=installed: object() if found else None)
        base.readable_extensions.cache_clear()
        data = open_data(str(tmp_path))
        assert len(data.train) + len(data.val) == 4 + installed
        assert ("vitreous[heic]" in data.note) is not installed
    base.readable_extensions.cache_clear()


def test_class_can_be_called_train(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{name}/{i}.jpg" for name in ("train", "bus", "tram") for i in range(3)))
    assert open_data(str(tmp_path)).classes == ("bus", "train", "tram")


def test_links_are_followed_without_cycles(tmp_path: Path) -> None:
    fill(tmp_path, "data/a/1.jpg", "data/b/2.jpg", "elsewhere/3.jpg")
    (tmp_path / "data/a/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/a/circle").symlink_to(tmp_path / "data")
    source = open_folder(tmp_path / "data").splits["all"]
    names = [source.name(i) for i in range(len(source))]
    assert [name for name in names if name.startswith("a/") and "circle" not in name] == ["a/1.jpg", "a/more/3.jpg"]
    assert len(names) < 10


def test_images_outside_class_folders_give_a_note(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{name}/{i}.jpg" for name in "ab" for i in range(5)), "cover.jpg")
    assert "1 image outside the class folders" in open_data(str(tmp_path)).note


def test_test_folder_without_labels_is_ignored(tmp_path: Path) -> None:
    fill(
        tmp_path,
        *(f"{part}/{name}/{i}.jpg" for part in ("train", "val") for name in "ab" for i in range(2)),
        "test/1.jpg",
    )
    data = open_data(str(tmp_path))
    assert data.test is None
    assert "test has no class folders and is ignored" in data.note


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "is empty"),
        (["notes.txt"], "has no images, only 'notes.txt'"),
        (["a/1.txt", "b/2.txt"], r"no images in the folders of .*pets \(supported: .*\.jpeg .*\.tiff"),
        (["1.jpg", "2.jpg"], "has 2 images but no class folders; expected <class>/.* --task mae"),
        (["labels.csv", "1.jpg"], r"has no class folders; did you mean '.*labels.csv'\?"),
        (["a/1.jpg", "a/2.jpg"], "only one class, 'a'; at least 2 are required"),
        (["a/1.jpg", "a/2.jpg", "b/notes.txt"], "empty class folder: no images in 'b'"),
        (
            ["train/a/1.jpg", "train/b/x", "val/a/2.jpg", "val/b/x"],
            "empty class folder: no images in 'train/b'",
        ),
        (["a/1.jpg", "a/2.jpg", "b/1.jpg"], "at least 2 images .*'b'"),
        (
            ["train/a/1.jpg", "train/b/2.jpg", "val/a/1.jpg", "val/c/2.jpg"],
            "val has 'c', which train lacks; train has 'b'",
        ),
        (["train/1.jpg", "val/2.jpg"], "has 1 image but no class folders; expected train/<class>/"),
        (["val/a/1.jpg", "test/a/2.jpg"], "but no 'train' folder"),
        (["train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg"], "the same split: 'val', 'valid'; keep one"),
    ],
)
def test_invalid_folders_are_rejected(tmp_path: Path, paths: list[str], message: str) -> None:
    root = fill(tmp_path / "pets", *paths)
    root.mkdir(exist_ok=True)
    with pytest.raises(ValueError, match=message) as caught:
        open_data(str(root))
    assert "\n" not in str(caught.value)
    assert "pets" in str(caught.value)


def test_all_folder_problems_are_reported(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.jpg", "train/b/x", "val/c/1.jpg")
    found = open_folder(tmp_path)
    assert len(found.problems) == 1
    assert len(label_problems(found)) == 2


# ---- Without labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "paths",
    [
        [f"{i}.png" for i in range(10)],
        [f"only/{i}.png" for i in range(10)],
        [f"a/{i}.png" for i in range(9)] + ["b/alone.png"],
        [f"a/{i}.png" for i in range(4)] + [f"b/{i}.png" for i in range(5)] + ["loose.png"],
        [f"images/{i}.png" for i in range(10)] + [f"masks/{i}.png" for i in range(10)],
    ],
    ids=["flat", "one class", "a class of one", "some loose", "masks beside them"],
)
def test_unlabelled_data_contains_all_images(tmp_path: Path, paths: list[str]) -> None:
    root = fill(tmp_path / "set", *paths)
    data = open_data(str(root), labelled=False)
    names = [source.name(i) for source in (data.train, data.val) for i in range(len(source))]
    assert sorted(names) == sorted(path for path in paths if not path.startswith("masks"))
    assert len(data.val) == 2
    with (
        pytest.raises(ValueError, match=r"no class folders|only one class|at least 2 images|it is for segmenters")
        if ("loose.png" not in paths)
        else contextlib.nullcontext()
    ):
        open_data(str(root))


def test_splits_without_labels(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", "train/1.png", "train/deep/2.png", "val/3.png", "test/4.png")
    data = open_data(str(root), labelled=False)
    assert [contents(part) is not None and len(part) for part in (data.train, data.val, data.test)] == [2, 1, 1]


def test_folders_called_images_and_masks_can_be_classes(tmp_path: Path) -> None:
    """No image has a mask of the same name."""
    root = fill(tmp_path / "set", *(f"image/a{i}.png" for i in range(5)), *(f"mask/b{i}.png" for i in range(5)))
    assert open_data(str(root)).classes == ("image", "mask")
