import io
import os
import sys
from pathlib import Path

import pytest

from vitreous.common.checks import BadValue
from vitreous.inference.predict_images import MasksSkipped, expand

FILES = [
    "b/2.PNG",
    "b/10.jpg",
    "b/notes.txt",
    "a/deep/er/x.webp",
    "c[1].jpeg",
    "odd.data",
    ".hidden/y.jpg",
    "b/._10.jpg",
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)


def found(*arguments: str) -> list[str]:
    return [path.as_posix() for path in expand(arguments)]


def test_a_file_is_read_regardless_of_its_name() -> None:
    assert found("odd.data", "c[1].jpeg", "b/2.PNG", ".hidden/y.jpg") == [
        "odd.data",
        "c[1].jpeg",
        "b/2.PNG",
        ".hidden/y.jpg",
    ]


def test_a_folder_expands_to_its_images_at_any_depth_sorted() -> None:
    assert found(".") == ["a/deep/er/x.webp", "b/10.jpg", "b/2.PNG", "c[1].jpeg"]
    assert found("b", "a") == ["b/10.jpg", "b/2.PNG", "a/deep/er/x.webp"]


def test_unexpanded_globs_are_expanded() -> None:
    assert found("b/*.jpg") == ["b/10.jpg"]
    assert found("*/*") == ["a/deep/er/x.webp", "b/10.jpg", "b/2.PNG"]
    assert found("**/*.webp") == ["a/deep/er/x.webp"]
    assert found("**") == found(".")
    assert found("b/?.PNG", "b/[0-9]*") == ["b/2.PNG", "b/10.jpg"]


def test_each_image_once_in_the_order_of_the_arguments(tmp_path: Path) -> None:
    assert found("b/2.PNG", "b", "./b/../b/10.jpg", str(tmp_path / "b/2.PNG")) == ["b/2.PNG", "b/10.jpg"]


def test_links_are_followed_without_cycles(tmp_path: Path) -> None:
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "empty" / "b").symlink_to("../b")
    assert found("empty") == ["empty/b/10.jpg", "empty/b/2.PNG"]
    assert [os.path.realpath(path) for path in found("a")].count(str(tmp_path.resolve() / "a/deep/er/x.webp")) == 1


@pytest.mark.parametrize("separator", ["\n", "\r\n", "\0"])
def test_paths_are_read_from_standard_input(monkeypatch: pytest.MonkeyPatch, separator: str) -> None:
    text = separator.join(["b/2.PNG", "", "c[1].jpeg", "a", ""])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), newline=""))
    assert found("odd.data", "-") == ["odd.data", "b/2.PNG", "c[1].jpeg", "a/deep/er/x.webp"]


def test_paths_from_standard_input_are_not_globs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"b/*.jpg")))
    with pytest.raises(ValueError, match=r"'b/\*.jpg' not found"):
        found("-")


def test_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand(["~/b/10.jpg", "~/b/*.PNG"]) == [tmp_path / "b/10.jpg", tmp_path / "b/2.PNG"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("b/10.jgp", r"'b/10.jgp' not found \(did you mean '10.jpg'\?\)$"),
        (
            "a/deeep/er/x.webp",
            r"'a/deeep/er/x.webp' not found: 'a/deeep' does not exist \(did you mean 'deep'\?\)",
        ),
        ("nothing-like-it", r"'nothing-like-it' not found$"),
        ("b/10.jpg/x", r"'b/10.jpg/x' not found$"),
        ("b/*.gif", r"no files match 'b/\*.gif'$"),
        ("empty", r"no images found in 'empty' \(supported: .*\.jpeg \.jpg"),
        ("*.data", r"no images found in '\*.data'"),
    ],
)
def test_missing_files_are_named(argument: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        found(argument)


def test_no_argument_is_an_error() -> None:
    with pytest.raises(BadValue, match="files, folders, globs"):
        found()


# ---- Images beside masks ---------------------------------------------------------------------------------------------


def make(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        (["images/a.jpg", "images/b.png"], ["masks/a.png", "masks/b.png"]),
        (["images/train/a.jpg", "images/val/b.jpg"], ["masks/train/a.png", "masks/val/b.png"]),
        (["test/images/c.jpg", "train/images/a.jpg"], ["train/masks/a.png"]),
        (["JPEGImages/a.jpg", "other.jpg"], ["SegmentationClass/a.png", "Annotations/a.png"]),
    ],
    ids=lambda names: names[0],
)
def test_masks_beside_images_are_skipped_with_a_warning(images: list[str], masks: list[str]) -> None:
    make(*(f"set/{name}" for name in (*images, *masks)))
    count = "1 mask" if len(masks) == 1 else f"{len(masks)} masks"
    with pytest.warns(MasksSkipped, match=f"{count} skipped .* set$"):
        assert found("set") == [f"set/{name}" for name in images]
    assert found(f"set/{masks[0]}") == [f"set/{masks[0]}"]  # a mask that is named explicitly is used


def test_folders_named_like_mask_folders_are_kept_if_no_image_matches() -> None:
    make("shop/images/1.jpg", "shop/labels/bottle.jpg", "party/masks/1.png", "party/hats/1.png")
    assert found("shop", "party/masks") == ["shop/images/1.jpg", "shop/labels/bottle.jpg", "party/masks/1.png"]
    assert found("party") == ["party/hats/1.png", "party/masks/1.png"]
