"""Folder layouts with images and masks, and their problems."""

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from images import encoded, smooth
from masked_folders import CLASSES, folder, ids_of, write
from vitreous.data.doctor.check import check_data
from vitreous.data.masks.layouts import has_masks
from vitreous.data.open import open_data, open_masked
from vitreous.data.sources.base import Source


def names(source: Source) -> list[str]:
    return [source.name(i) for i in range(len(source))]


def test_images_and_masks_folders(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path / "set", 10)), val_fraction=0.3, seed=1)
    assert (len(data.train), len(data.val), data.test) == (7, 3, None)
    assert data.note == "train 7, val 3; val is 30% of the images, drawn with seed 1"
    assert data.mask_classes == data.val.mask_classes == ("sky", "sea", "border")
    assert data.classes == ("picture",)
    for source in (data.train, data.val):
        for i in range(len(source)):
            stored = ids_of(int(Path(source.name(i)).stem))
            expected = np.where(stored == 3, 2, stored)  # 0, 1, 3 become 0, 1, 2; 255 stays
            assert np.array_equal(source.mask(i), expected)
            assert source.mask(i).dtype == np.uint8
    assert sorted(names(data.train) + names(data.val)) == sorted(f"images/{'ab'[i % 2]}/{i}.jpg" for i in range(10))


def test_ignored_classes_become_255(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path / "set")), ignore=("sky",))
    assert data.mask_classes == ("sea", "border")
    assert re.search(r"ignored.*'sky'", data.note)
    stored = ids_of(int(Path(data.train.name(0)).stem))
    assert np.array_equal(data.train.mask(0), np.select([stored == 1, stored == 3], [0, 1], 255))


def test_split_subfolders(tmp_path: Path) -> None:
    for part, count in (("train/", 4), ("validation/", 2), ("test/", 3)):
        folder(tmp_path, count, part)
    data = open_masked(str(tmp_path))
    assert data.test is not None
    assert [len(part) for part in (data.train, data.val, data.test)] == [4, 2, 3]
    assert names(data.val) == ["images/validation/a/0.jpg", "images/validation/b/1.jpg"]


def test_test_split_without_masks_is_ignored(tmp_path: Path) -> None:
    for part, count in (("train/", 4), ("val/", 2), ("test/", 3)):
        folder(tmp_path, count, part)
    shutil.rmtree(tmp_path / "masks/test")
    (tmp_path / "images/notes").mkdir()
    data = open_masked(str(tmp_path))
    assert data.test is None
    assert "images/test has no masks and is ignored" in data.note
    assert re.search(r"ignored.*'images/notes'", data.note)


@pytest.mark.parametrize(("images", "masks"), [("image", "labels"), ("JPEGImages", "annotations"), ("img", "Mask")])
def test_alternative_folder_names(images: str, masks: str, tmp_path: Path) -> None:
    for i, part in enumerate(("training", "training", "val")):
        write(tmp_path, f"{part}/{i}", i, images, masks)
    data = open_masked(str(tmp_path))
    assert (len(data.train), len(data.val)) == (2, 1)


def test_mask_folder_without_images_is_ignored(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path, str(i), i, "JPEGImages", "SegmentationClass")
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/0.xml").write_text("<annotation/>")
    assert len(open_masked(str(tmp_path)).train) == 3
    (tmp_path / "Annotations/0.png").write_bytes(encoded(ids_of(0)))
    with pytest.raises(ValueError, match="mask folders: 'Annotations', 'SegmentationClass'"):
        open_masked(str(tmp_path))


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{split}/{i}.jpg", "{split}annot/{i}.png"),  # CamVid
        ("{split}/{i}.jpg", "{split}_labels/{i}_L.png"),
        ("{split}/{i}.jpg", "{split}_masks/{i}_mask.png"),
        ("{split}/{i}.jpg", "{split}/{i}_mask.png"),
        ("images/{split}/{i}.jpg", "labels/{split}/{i}.png"),
        ("{split}/images/{i}.jpg", "{split}/annotations/{i}.png"),
        ("images/{split}ing/{i}.jpg", "annotations/{split}ing/{i}.png"),  # ADE20K
        ("leftImg8bit/{split}/ulm/{i}_leftImg8bit.png", "gtFine/{split}/ulm/{i}_gtFine_labelIds.png"),  # Cityscapes
    ],
    ids=lambda path: path,
)
def test_layouts_with_splits(image: str, mask: str, tmp_path: Path) -> None:
    splits = ["train", "test"] if "ing/" in image else ["train", "val", "test"]
    for i, split in enumerate(splits * 2):
        for path, pixels in ((image, smooth(12, 16, i)), (mask, ids_of(i))):
            file = tmp_path / path.format(split=split, i=i)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(pixels, "JPEG" if file.suffix == ".jpg" else "PNG"))
    assert has_masks(tmp_path)
    data = open_masked(str(tmp_path))
    assert len(data.train) == len(data.val) == 2
    assert all(np.isin(data.val.mask(i), [0, 1, 2, 255]).all() for i in range(2))
    assert "ignored" not in data.note
    report = check_data(str(tmp_path))
    assert report.masks is not None
    assert not report.problems


def test_masks_beside_images_without_splits(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path, str(i), i, "", "")
        (tmp_path / f"{i}.png").rename(tmp_path / f"{i}_mask.png")
    data = open_masked(str(tmp_path))
    assert sorted(names(data.train) + names(data.val)) == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert np.array_equal(data.val.mask(0) == 255, ids_of(int(Path(data.val.name(0)).stem)) == 255)
    (tmp_path / "2_mask.png").unlink()
    with pytest.raises(ValueError, match=r"1 of 4 images has no mask: '2.jpg'; expected e.g. '2_mask.png'"):
        open_masked(str(tmp_path))


def test_only_the_class_ids_of_cityscapes_are_read(tmp_path: Path) -> None:
    for i, split in enumerate(("train", "train", "val")):
        write(tmp_path, f"{split}/{i}", i, "leftImg8bit", "gtFine")
        (tmp_path / f"leftImg8bit/{split}/{i}.jpg").rename(tmp_path / f"leftImg8bit/{split}/{i}_leftImg8bit.jpg")
        mask = tmp_path / f"gtFine/{split}/{i}.png"
        for kind in ("color", "instanceIds", "labelTrainIds"):
            shutil.copy(mask, mask.with_name(f"{i}_gtFine_{kind}.png"))
        mask.unlink()
    data = open_masked(str(tmp_path))
    assert (len(data.train), len(data.val)) == (2, 1)


def test_folders_with_class_labels_are_not_taken_for_masks(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat/0.jpg", "dog/1.jpg"):
            (tmp_path / split / name).parent.mkdir(parents=True)
            (tmp_path / split / name).write_bytes(encoded(smooth(12, 16), "JPEG"))
    (tmp_path / "train_labels").mkdir()
    (tmp_path / "train_labels" / "labels.csv").write_text("0.jpg,cat\n")
    assert not has_masks(tmp_path)
    assert open_data(str(tmp_path)).classes == ("cat", "dog")


def test_error_for_an_unknown_layout_suggests_a_command(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for i in range(3):
        write(root, str(i), i, "my photos", "segmentations")
    with pytest.raises(ValueError, match="rename") as error:
        open_masked(str(root))
    subprocess.run(re.findall(r"`(.*)`", str(error.value))[0], shell=True, check=True)
    assert len(open_masked(str(root)).train) == 2
    with pytest.raises(ValueError, match=f"did you mean '{root}'"):
        open_masked(str(tmp_path))


def test_pascal_voc_layout(tmp_path: Path) -> None:
    """Most images have only boxes; split lists name the images with masks."""
    for i in range(5):
        write(tmp_path, f"2007_{i}", i, "JPEGImages", "SegmentationClass")
    for name in ("boxes", "more"):
        (tmp_path / f"JPEGImages/{name}.jpg").write_bytes(encoded(smooth(12, 16, 0), "JPEG"))
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    for part, names in (("train", (3, 0)), ("val", (1,)), ("trainval", (0, 1, 3))):
        (tmp_path / f"ImageSets/Segmentation/{part}.txt").write_text("".join(f"2007_{i}\n" for i in names))
    data = open_masked(str(tmp_path))
    assert sorted(data.train.name(i) for i in range(2)) == ["JPEGImages/2007_0.jpg", "JPEGImages/2007_3.jpg"]
    assert [data.val.name(i) for i in range(len(data.val))] == ["JPEGImages/2007_1.jpg"]
    assert "splits from ImageSets/Segmentation, 4 images ignored" in data.note
    (tmp_path / "ImageSets/Segmentation/test.txt").write_text("more\n2007_4\n")  # one of them has a mask
    assert open_masked(str(tmp_path)).test.name(0) == "JPEGImages/2007_4.jpg"  # type: ignore[union-attr]
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text("boxes")
    with pytest.raises(ValueError, match=r"1 of 4 images has no mask: 'JPEGImages/boxes\.jpg'"):
        open_masked(str(tmp_path))


def test_split_names_can_contain_a_year(tmp_path: Path) -> None:
    for i, part in enumerate(("train2017", "val2017", "val2017", "val2017")):
        write(tmp_path, f"{part}/{i}", i)
    data = open_masked(str(tmp_path))
    assert (len(data.train), len(data.val)) == (1, 3)


def test_class_missing_from_train_gives_a_note(tmp_path: Path) -> None:
    for i, part in enumerate(("train", "train", "val")):
        write(tmp_path, f"{part}/{i}", i)
    (tmp_path / "classes.txt").write_text("0 sky\n1 sea\n3 border\n5 ship\n")
    assert "no train mask" not in open_masked(str(tmp_path)).note
    ids = ids_of(2)
    ids[1] = 5
    (tmp_path / "masks/val/2.png").write_bytes(encoded(ids))
    assert "cannot be learned: 'ship'" in open_masked(str(tmp_path)).note
    assert "no train mask" not in open_masked(str(tmp_path), ignore=("ship",)).note


def test_split_folders_that_contain_images_and_masks(tmp_path: Path) -> None:
    for i, part in enumerate(("train", "train", "valid")):
        write(tmp_path, str(i), i, f"{part}/images", f"{part}/masks")
    data = open_masked("set", root=_renamed(tmp_path))
    assert names(data.train) == ["train/images/0.jpg", "train/images/1.jpg"]
    assert names(data.val) == ["valid/images/2.jpg"]


def _renamed(folder: Path) -> Path:
    shutil.copytree(folder, folder / "root/set")
    return folder / "root"


def test_without_a_class_list_ids_become_classes_with_a_note(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path, classes=None)), ignore=("3",))
    assert data.mask_classes == ("0", "1")
    assert re.search(r"classes: '0', '1', '3'.*ignored.*'3'", data.note)


def test_class_without_pixels_gives_a_note(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path, classes=CLASSES + "9 sun\n")))
    assert data.mask_classes == ("sky", "sea", "border", "sun")
    assert "no mask contains 'sun'" in data.note


def test_255_is_a_class_if_it_is_listed(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path, classes=CLASSES + "255 ship\n")))
    assert data.mask_classes == ("sky", "sea", "border", "ship")
    assert set(np.unique(data.train.mask(0))) == {0, 1, 2, 3}


def test_palette_and_16_bit_masks(tmp_path: Path) -> None:
    folder(tmp_path, classes="0 sky\n1 sea\n3 border\n1000 ship\n")
    indexed = Image.fromarray(ids_of(0))
    indexed.putpalette([200, 100, 50] * 256)
    (tmp_path / "masks/a/0.png").write_bytes(encoded(indexed))
    (tmp_path / "masks/a/0.png").rename(tmp_path / "masks/a/0.PNG")
    deep = ids_of(1).astype(np.uint16)
    deep[5] = 1000
    (tmp_path / "masks/b/1.png").write_bytes(encoded(deep))
    data = open_masked(str(tmp_path), val_fraction=0.2)
    by_name = {source.name(i): source.mask(i) for source in (data.train, data.val) for i in range(len(source))}
    assert np.array_equal(by_name["images/a/0.jpg"], np.where(ids_of(0) == 3, 2, ids_of(0)))
    assert (by_name["images/b/1.jpg"][5] == 3).all()


def test_shapes_have_masks() -> None:
    data = open_masked("shapes:size=24,count=12,val=6", seed=4)
    assert data.mask_classes == ("background", "circle", "square", "triangle", "ring", "cross", "star")
    assert [sorted(set(data.train.mask(i).ravel().tolist())) for i in range(3)] == [[0, 1], [0, 2], [0, 3]]
    bare = open_masked("shapes:size=24,count=12,val=6", seed=4, ignore=("background", "square"))
    assert bare.mask_classes == ("circle", "triangle", "ring", "cross", "star")
    assert re.search(r"ignored.*'background', 'square'", bare.note)
    assert [sorted(set(bare.train.mask(i).ravel().tolist())) for i in range(3)] == [[0, 255], [255], [1, 255]]
    assert np.array_equal(bare.train.mask(0) == 0, data.train.mask(0) == 1)


def put(name: str, pixels: np.ndarray | Image.Image) -> Callable[[Path], None]:
    return lambda root: (root / name).write_bytes(encoded(pixels)) and None


def several(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda root: [change(root) for change in changes] and None


def remove(*paths: str) -> Callable[[Path], None]:
    return lambda root: [(root / path).unlink() for path in paths] and None


def mask_with_unknown_id(value: int) -> np.ndarray:
    ids = ids_of(0)
    ids[3, 3] = value
    return ids


BAD: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "unknown ids": (
        several(
            put("masks/a/0.png", mask_with_unknown_id(7)),
            put("masks/b/1.png", mask_with_unknown_id(2)),
            put("masks/a/2.png", mask_with_unknown_id(7)),
        ),
        [
            "3 masks have ids that are not in classes.txt: 7 (in 2 masks), 2 (in 1 mask); "
            "see 'masks/a/0.png', 'masks/a/2.png', 'masks/b/1.png'"
        ],
    ),
    "other sizes": (
        several(put("masks/a/0.png", ids_of(0, 16, 12)), put("masks/a/2.png", ids_of(0, 6, 8))),
        [
            "2 masks differ in size from their images: 'masks/a/0.png' (mask 16 x 12, image 12 x 16); "
            "'masks/a/2.png' (mask 6 x 8, image 12 x 16)"
        ],
    ),
    "missing masks": (
        remove("masks/a/0.png", "masks/b/3.png"),
        ["2 of 6 images have no mask: 'images/a/0.jpg', 'images/b/3.jpg'; expected e.g. 'masks/a/0.png'"],
    ),
    "masks alone": (remove("images/a/4.jpg"), ["1 mask has no image: 'masks/a/4.png'"]),
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
            "1 mask contains colours such as (128, 64, 0) instead of class ids: 'masks/a/0.png'; "
            "convert each colour to an id"
        ],
    ),
    "unlabelled": (
        several(remove("classes.txt"), lambda root: (root / "classes.txt").write_text("1 sea\n3 border\n") and None),
        [
            "6 masks have ids that are not in classes.txt: 0 (in 6 masks); see 'masks/a/0.png', 'masks/a/2.png', "
            "'masks/a/4.png' and 3 more; "
            'if 0 means unlabelled, add the line "0 unlabelled" and use --ignore unlabelled'
        ],
    ),
    "JPEG masks": (
        lambda root: (root / "masks/a/0.png").rename(root / "masks/a/0.jpg") and None,
        ["1 of 6 images has no mask", "masks must be PNG files, got 'masks/a/0.jpg'"],
    ),
    "broken images": (
        lambda root: (root / "images/a/0.jpg").write_bytes(b"<html>") and None,
        ["1 image cannot be read: 'images/a/0.jpg' (not an image in a supported format)"],
    ),
    "all of it": (
        several(
            remove("masks/a/2.png", "images/a/4.jpg"),
            put("masks/a/0.png", mask_with_unknown_id(8)),
            put("masks/b/1.png", smooth(12, 16)),
            put("masks/b/3.png", ids_of(3, 12, 15)),
            lambda root: (root / "masks/b/5.png").write_bytes(b"") and None,
        ),
        [
            "1 of 5 images has no mask",
            "1 mask has no image",
            "1 mask cannot be read",
            "1 mask contains colours",
            "1 mask differs in size",
            "1 mask has ids",
        ],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_every_problem_is_reported_in_one_line_with_names_and_counts(name: str, tmp_path: Path) -> None:
    spoil, expected = BAD[name]
    spoil(folder(tmp_path / "set"))
    with pytest.raises(ValueError, match="set: ") as caught:
        open_masked(str(tmp_path / "set"))
    lines = str(caught.value).splitlines()
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(f"set: {start}")


def test_long_lists_are_truncated_with_a_count(tmp_path: Path) -> None:
    folder(tmp_path / "set", 40)
    for i in range(0, 40, 2):
        (tmp_path / f"set/masks/a/{i}.png").write_bytes(encoded(mask_with_unknown_id(100 + i)))
        (tmp_path / f"set/masks/b/{i + 1}.png").write_bytes(b"")
    with pytest.raises(ValueError, match="set: ") as caught:
        open_masked(str(tmp_path / "set"))
    unreadable, unknown = str(caught.value).splitlines()
    assert unreadable.startswith("set: 20 masks cannot be read")
    assert unreadable.endswith("and 17 more")
    assert "20 masks have ids" in unknown
    assert "and 15 more; see " in unknown
    assert len(unknown) < 300


def test_error_explains_black_and_white_masks(tmp_path: Path) -> None:
    """The most common mistake is to use 0 and 255, since 255 means ignored."""
    for i in range(4):
        write(tmp_path, str(i), i)
        (tmp_path / f"masks/{i}.png").write_bytes(encoded(np.where(ids_of(i) == 1, 255, 0).astype(np.uint8)))
    with pytest.raises(ValueError, match=r"got only '0' \(id 255 is ignored unless classes.txt lists it"):
        open_masked(str(tmp_path))
    (tmp_path / "classes.txt").write_text("background\nship\n")
    with pytest.raises(ValueError, match=r'255 is ignored; .* add "255 ship"'):
        open_masked(str(tmp_path))
    (tmp_path / "classes.txt").write_text("0 background\n255 ship\n")
    assert open_masked(str(tmp_path)).mask_classes == ("background", "ship")


@pytest.mark.parametrize("each", [list(range(101)), None], ids=["in one mask", "in all"])
def test_smoothed_masks_are_detected_by_their_many_ids(each: list[int] | None, tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path, str(i), i)
        ids = np.resize(np.array(each or range(60 * i, 60 * i + 60), np.uint8), (12, 16))
        (tmp_path / f"masks/{i}.png").write_bytes(encoded(ids))
    found = "101" if each else "240"
    with pytest.raises(ValueError, match=f"have {found} different ids.*smoothed or saved as JPEG.*classes.txt"):
        open_masked(str(tmp_path))
    (tmp_path / "classes.txt").write_text("".join(f"{i} c{i}\n" for i in range(250)))
    assert len(open_masked(str(tmp_path)).mask_classes) == 250


def test_realistic_number_of_ids_is_accepted(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path, str(i), i)
        (tmp_path / f"masks/{i}.png").write_bytes(
            encoded(np.resize(np.arange(46 * i, 46 * i + 46, dtype=np.uint8), (12, 16)))
        )
    assert len(open_masked(str(tmp_path)).mask_classes) == 184


@pytest.mark.parametrize("ending", ["jpg", "npy"])
def test_test_split_with_masks_in_another_format_is_a_problem(ending: str, tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        write(tmp_path, f"{part}/0", 0)
    (tmp_path / "masks/test/0.png").rename(tmp_path / f"masks/test/0.{ending}")
    with pytest.raises(ValueError, match=r"1 of 3 images has no mask: 'images/test/0.jpg'") as caught:
        open_masked(str(tmp_path))
    assert ("must be PNG files, got 'masks/test/0.jpg'" in str(caught.value)) == (ending == "jpg")
    (tmp_path / f"masks/test/0.{ending}").rename(tmp_path / "masks/test/.hidden")
    assert "images/test has no masks and is ignored" in open_masked(str(tmp_path)).note


def test_mask_size_is_compared_with_the_upright_exif_image(tmp_path: Path) -> None:
    folder(tmp_path, 4)
    tag = Image.Exif()
    tag[0x0112] = 6
    (tmp_path / "images/a/0.jpg").write_bytes(encoded(smooth(16, 12), "JPEG", exif=tag))
    assert len(open_masked(str(tmp_path)).train) == 3
    # A long header before the size, as in camera files with previews and colour profiles.
    (tmp_path / "images/a/0.jpg").write_bytes(encoded(smooth(16, 12), "JPEG", exif=tag, icc_profile=bytes(200_000)))
    assert len(open_masked(str(tmp_path)).train) == 3
    (tmp_path / "images/a/0.jpg").write_bytes(encoded(smooth(12, 16), "JPEG", exif=tag))
    with pytest.raises(ValueError, match="mask 12 x 16, image 16 x 12"):
        open_masked(str(tmp_path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ([], "has no folders; expected DIR/images and DIR/masks"),
        (["cats", "dogs"], "has only 'cats', 'dogs'; expected DIR/images and DIR/masks"),
        (["images", "masks"], "no images in 'images'"),
        (["images", "img", "masks"], "image folders: 'images', 'img'; keep one"),
        (["images/train", "images/training", "masks"], "the same split: 'train', 'training'; keep one"),
    ],
    ids=str,
)
def test_error_explains_unsupported_folders(make: list[str], message: str, tmp_path: Path) -> None:
    for name in make:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=message):
        open_masked(str(tmp_path))


def test_error_for_one_split_of_camvid_names_the_whole_data_set(tmp_path: Path) -> None:
    for name in ("train", "trainannot", "val", "valannot"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encoded(smooth(12, 16), "PNG"))
    message = f"its masks are in {tmp_path / 'trainannot'}: use '{tmp_path}'"
    for opened in (open_masked, open_data):
        with pytest.raises(ValueError, match=re.escape(message)):
            opened(str(tmp_path / "train"))


def test_shards_beside_masks_are_not_mistaken_for_a_split(tmp_path: Path) -> None:
    for name in ("masks", "images"):
        (tmp_path / name).mkdir()
    (tmp_path / "masks" / "0.png").write_bytes(encoded(smooth(12, 16), "PNG"))
    with tarfile.open(tmp_path / "images" / "train-0.tar", "w") as tar:
        for index in range(8):
            for ending, data in (("png", encoded(smooth(12, 16), "PNG")), ("cls", str(index % 2).encode())):
                member = tarfile.TarInfo(f"{index}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    assert len(open_data(str(tmp_path / "images")).classes) == 2


def test_error_explains_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="digits has image labels but no masks"):
        open_masked("digits")
    with pytest.raises(ValueError, match="folder 'nowhere' not found"):
        open_masked("nowhere", root=tmp_path)
    with pytest.raises(ValueError, match="ignore is 'sun', but must be one of the classes 'sky'"):
        open_masked(str(folder(tmp_path)), ignore=("sun",))
    (tmp_path / "masks/a/0.png").unlink()  # a wrong name is reported before any mask is read
    with pytest.raises(ValueError, match="ignore is 'sun'"):
        open_masked(str(tmp_path), ignore=("sun",))


def test_val_split_without_train_is_rejected(tmp_path: Path) -> None:
    folder(tmp_path, 3, "val/")
    with pytest.raises(ValueError, match="no train split, only val"):
        open_masked(str(tmp_path))
