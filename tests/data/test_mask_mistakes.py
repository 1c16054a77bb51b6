"""Everything that can be wrong with a folder of pictures and masks, named and counted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from masked_folders import folder, ids_of, write
from pictures import encoded, smooth
from vitreous.data.masks.folders import open_masked


def put(name: str, pixels: np.ndarray | Image.Image) -> Callable[[Path], None]:
    return lambda root: (root / name).write_bytes(encoded(pixels)) and None


def several(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda root: [change(root) for change in changes] and None


def remove(*paths: str) -> Callable[[Path], None]:
    return lambda root: [(root / path).unlink() for path in paths] and None


def stray(value: int) -> np.ndarray:
    ids = ids_of(0)
    ids[3, 3] = value
    return ids


BAD: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "unknown ids": (
        several(put("masks/a/0.png", stray(7)), put("masks/b/1.png", stray(2)), put("masks/a/2.png", stray(7))),
        [
            "3 masks have ids that classes.txt does not list: 7 (in 2 masks), 2 (in 1 mask); "
            "see 'masks/a/0.png', 'masks/a/2.png', 'masks/b/1.png'"
        ],
    ),
    "other sizes": (
        several(put("masks/a/0.png", ids_of(0, 16, 12)), put("masks/a/2.png", ids_of(0, 6, 8))),
        [
            "2 masks of another size than the picture: 'masks/a/0.png' (the mask is 16 x 12, the picture 12 x 16); "
            "'masks/a/2.png' (the mask is 6 x 8, the picture 12 x 16)"
        ],
    ),
    "missing masks": (
        remove("masks/a/0.png", "masks/b/3.png"),
        [
            "2 of 6 pictures have no mask: 'images/a/0.jpg', 'images/b/3.jpg'; "
            "that of 'images/a/0.jpg' would be 'masks/a/0.png'"
        ],
    ),
    "masks alone": (remove("images/a/4.jpg"), ["1 mask without a picture: 'masks/a/4.png'"]),
    "unreadable masks": (
        several(
            lambda root: (root / "masks/a/0.png").write_bytes(b"") and None,
            lambda root: (root / "masks/b/1.png").write_bytes(b"<html>") and None,
            lambda root: (root / "masks/b/3.png").write_bytes(encoded(ids_of(3))[:80]) and None,
        ),
        [
            "3 masks cannot be read: 'masks/a/0.png' (the file is empty); 'masks/b/1.png' (not a PNG file); "
            "'masks/b/3.png' (cannot be decoded: "
        ],
    ),
    "colours": (
        put("masks/a/0.png", Image.new("RGB", (16, 12), (128, 64, 0))),
        [
            "1 mask shows colours, as (128, 64, 0), but a mask holds class ids, as grey levels or as indices into "
            "a palette: 'masks/a/0.png'; give each colour a number, and save the numbers as grey PNG"
        ],
    ),
    "unlabelled": (
        several(remove("classes.txt"), lambda root: (root / "classes.txt").write_text("1 sea\n3 border\n") and None),
        [
            "6 masks have ids that classes.txt does not list: 0 (in 6 masks); see 'masks/a/0.png', 'masks/a/2.png', "
            "'masks/a/4.png' and 3 more; "
            'if 0 means unlabelled, list it as "0 unlabelled" and give --ignore unlabelled'
        ],
    ),
    "JPEG masks": (
        lambda root: (root / "masks/a/0.png").rename(root / "masks/a/0.jpg") and None,
        ["1 of 6 pictures has no mask", "1 mask not in PNG, which keeps ids as they are: 'masks/a/0.jpg'"],
    ),
    "broken pictures": (
        lambda root: (root / "images/a/0.jpg").write_bytes(b"<html>") and None,
        ["1 picture cannot be read: 'images/a/0.jpg' (not a picture in a format that can be read)"],
    ),
    "all of it": (
        several(
            remove("masks/a/2.png", "images/a/4.jpg"),
            put("masks/a/0.png", stray(8)),
            put("masks/b/1.png", smooth(12, 16)),
            put("masks/b/3.png", ids_of(3, 12, 15)),
            lambda root: (root / "masks/b/5.png").write_bytes(b"") and None,
        ),
        [
            "1 of 5 pictures has no mask",
            "1 mask without a picture",
            "1 mask cannot be read",
            "1 mask shows colours",
            "1 mask of another size",
            "1 mask has ids",
        ],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_everything_wrong_is_named_and_counted_in_a_line_each(name: str, tmp_path: Path) -> None:
    spoil, expected = BAD[name]
    spoil(folder(tmp_path / "set"))
    with pytest.raises(ValueError, match="set: ") as caught:
        open_masked(str(tmp_path / "set"))
    lines = str(caught.value).splitlines()
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(f"set: {start}")


def test_long_lists_are_cut_but_counted(tmp_path: Path) -> None:
    folder(tmp_path / "set", 40)
    for i in range(0, 40, 2):
        (tmp_path / f"set/masks/a/{i}.png").write_bytes(encoded(stray(100 + i)))
        (tmp_path / f"set/masks/b/{i + 1}.png").write_bytes(b"")
    with pytest.raises(ValueError, match="set: ") as caught:
        open_masked(str(tmp_path / "set"))
    unreadable, unknown = str(caught.value).splitlines()
    assert unreadable.startswith("set: 20 masks cannot be read")
    assert unreadable.endswith("and 17 more")
    assert "20 masks have ids" in unknown
    assert "and 15 more; see " in unknown
    assert len(unknown) < 300


def test_two_colours_of_black_and_white_are_explained(tmp_path: Path) -> None:
    """The commonest slip: 0 and 255, where 255 is taken for 'ignored'."""
    for i in range(4):
        write(tmp_path, str(i), i)
        (tmp_path / f"masks/{i}.png").write_bytes(encoded(np.where(ids_of(i) == 1, 255, 0).astype(np.uint8)))
    with pytest.raises(ValueError, match=r"only '0' is left.*id 255 means 'ignored', unless classes.txt lists it"):
        open_masked(str(tmp_path))
    (tmp_path / "classes.txt").write_text("background\nship\n")
    with pytest.raises(
        ValueError, match=r'only 0 and 255, which means ignored unless classes.txt lists it: "255 ship"'
    ):
        open_masked(str(tmp_path))
    (tmp_path / "classes.txt").write_text("0 background\n255 ship\n")
    assert open_masked(str(tmp_path)).mask_classes == ("background", "ship")


@pytest.mark.parametrize("each", [list(range(101)), None], ids=["in one mask", "in all"])
def test_masks_that_were_smoothed_are_told_by_their_many_ids(each: list[int] | None, tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path, str(i), i)
        ids = np.resize(np.array(each or range(60 * i, 60 * i + 60), np.uint8), (12, 16))
        (tmp_path / f"masks/{i}.png").write_bytes(encoded(ids))
    found = "101" if each else "240"
    with pytest.raises(ValueError, match=f"have {found} different ids.*look smoothed, or saved as JPEG.*classes.txt"):
        open_masked(str(tmp_path))
    (tmp_path / "classes.txt").write_text("".join(f"{i} c{i}\n" for i in range(250)))
    assert len(open_masked(str(tmp_path)).mask_classes) == 250


def test_as_many_ids_as_data_sets_have_classes_are_none_too_many(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path, str(i), i)
        (tmp_path / f"masks/{i}.png").write_bytes(
            encoded(np.resize(np.arange(46 * i, 46 * i + 46, dtype=np.uint8), (12, 16)))
        )
    assert len(open_masked(str(tmp_path)).mask_classes) == 184


@pytest.mark.parametrize("ending", ["jpg", "npy"])
def test_a_test_part_with_masks_of_another_kind_is_not_left_out(ending: str, tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        write(tmp_path, f"{part}/0", 0)
    (tmp_path / "masks/test/0.png").rename(tmp_path / f"masks/test/0.{ending}")
    with pytest.raises(ValueError, match=r"1 of 3 pictures has no mask: 'images/test/0.jpg'") as caught:
        open_masked(str(tmp_path))
    assert ("1 mask not in PNG, which keeps ids as they are: 'masks/test/0.jpg'" in str(caught.value)) == (
        ending == "jpg"
    )
    (tmp_path / f"masks/test/0.{ending}").rename(tmp_path / "masks/test/.hidden")
    assert "images/test has no masks and is left out" in open_masked(str(tmp_path)).note


def test_a_picture_turned_by_exif_is_as_large_as_it_is_upright(tmp_path: Path) -> None:
    folder(tmp_path, 4)
    tag = Image.Exif()
    tag[0x0112] = 6
    (tmp_path / "images/a/0.jpg").write_bytes(encoded(smooth(16, 12), "JPEG", exif=tag))
    assert len(open_masked(str(tmp_path)).train) == 3
    # A long header before the size, as cameras write it with previews and colour profiles.
    (tmp_path / "images/a/0.jpg").write_bytes(encoded(smooth(16, 12), "JPEG", exif=tag, icc_profile=bytes(200_000)))
    assert len(open_masked(str(tmp_path)).train) == 3
    (tmp_path / "images/a/0.jpg").write_bytes(encoded(smooth(12, 16), "JPEG", exif=tag))
    with pytest.raises(ValueError, match="the mask is 12 x 16, the picture 16 x 12"):
        open_masked(str(tmp_path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ([], "has no folders: masks are in DIR/masks beside DIR/images"),
        (["cats", "dogs"], "has 'cats', 'dogs', but no pictures beside masks: masks are in DIR/masks beside"),
        (["images", "masks"], "has no pictures in 'images'"),
        (["images", "img", "masks"], "has 'images', 'img', which mean the same: keep one"),
        (["images/train", "images/training", "masks"], "'train', 'training', which mean the same part"),
    ],
    ids=str,
)
def test_other_folders_are_explained(make: list[str], message: str, tmp_path: Path) -> None:
    for name in make:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=message):
        open_masked(str(tmp_path))


def test_other_names_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="digits has labels for its pictures, but no masks"):
        open_masked("digits")
    with pytest.raises(ValueError, match="there is no folder 'nowhere'"):
        open_masked("nowhere", root=tmp_path)
    with pytest.raises(ValueError, match="ignore is 'sun', but must be one of the classes 'sky'"):
        open_masked(str(folder(tmp_path)), ignore=("sun",))
    (tmp_path / "masks/a/0.png").unlink()  # a wrong name is said before any mask is read
    with pytest.raises(ValueError, match="ignore is 'sun'"):
        open_masked(str(tmp_path), ignore=("sun",))


def test_a_val_part_alone_is_not_enough(tmp_path: Path) -> None:
    folder(tmp_path, 3, "val/")
    with pytest.raises(ValueError, match="has val, but no train"):
        open_masked(str(tmp_path))
