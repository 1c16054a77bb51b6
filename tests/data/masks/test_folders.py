"""Folders of pictures and masks: how they may lie, and what is read from them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from masked_folders import CLASSES, folder, ids_of, write
from pictures import encoded, smooth
from vitreous.data.masks.folders import open_masked
from vitreous.data.sources.base import Source


def names(source: Source) -> list[str]:
    return [source.name(i) for i in range(len(source))]


def test_pictures_beside_masks(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path / "set", 10)), val_fraction=0.3, seed=1)
    assert (len(data.train), len(data.val), data.test) == (7, 3, None)
    assert data.note == "train 7, val 3; val is 30% of the pictures, chosen by seed 1"
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
    assert "'sky' ignored" in data.note
    stored = ids_of(int(Path(data.train.name(0)).stem))
    assert np.array_equal(data.train.mask(0), np.select([stored == 1, stored == 3], [0, 1], 255))


def test_parts_in_folders(tmp_path: Path) -> None:
    for part, count in (("train/", 4), ("validation/", 2), ("test/", 3)):
        folder(tmp_path, count, part)
    data = open_masked(str(tmp_path))
    assert data.test is not None
    assert [len(part) for part in (data.train, data.val, data.test)] == [4, 2, 3]
    assert names(data.val) == ["images/validation/a/0.jpg", "images/validation/b/1.jpg"]


def test_a_test_part_may_lack_masks_and_then_is_left_out(tmp_path: Path) -> None:
    for part, count in (("train/", 4), ("val/", 2), ("test/", 3)):
        folder(tmp_path, count, part)
    shutil.rmtree(tmp_path / "masks/test")
    (tmp_path / "images/notes").mkdir()
    data = open_masked(str(tmp_path))
    assert data.test is None
    assert "images/test has no masks and is left out" in data.note
    assert "'images/notes' left out" in data.note


@pytest.mark.parametrize(("pictures", "masks"), [("image", "labels"), ("JPEGImages", "annotations"), ("img", "Mask")])
def test_other_words_for_the_two_folders(pictures: str, masks: str, tmp_path: Path) -> None:
    for i, part in enumerate(("training", "training", "val")):
        write(tmp_path, f"{part}/{i}", i, pictures, masks)
    data = open_masked(str(tmp_path))
    assert (len(data.train), len(data.val)) == (2, 1)


def test_of_two_folders_that_mean_masks_the_one_with_pictures_is_taken(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path, str(i), i, "JPEGImages", "SegmentationClass")
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/0.xml").write_text("<annotation/>")
    assert len(open_masked(str(tmp_path)).train) == 3
    (tmp_path / "Annotations/0.png").write_bytes(encoded(ids_of(0)))
    with pytest.raises(ValueError, match="has 'Annotations', 'SegmentationClass', which mean the same: keep one"):
        open_masked(str(tmp_path))


def test_pascal_voc_is_taken_as_it_is(tmp_path: Path) -> None:
    """Most of its pictures have boxes only; which have masks, and in which part they are, is in its lists."""
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
    assert "parts by ImageSets/Segmentation, 4 pictures left out" in data.note
    (tmp_path / "ImageSets/Segmentation/test.txt").write_text("more\n2007_4\n")  # of which one has a mask
    assert open_masked(str(tmp_path)).test.name(0) == "JPEGImages/2007_4.jpg"  # type: ignore[union-attr]
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text("boxes")
    with pytest.raises(ValueError, match=r"1 of 4 pictures has no mask: 'JPEGImages/boxes\.jpg'"):
        open_masked(str(tmp_path))


def test_parts_with_a_year(tmp_path: Path) -> None:
    for i, part in enumerate(("train2017", "val2017", "val2017", "val2017")):
        write(tmp_path, f"{part}/{i}", i)
    data = open_masked(str(tmp_path))
    assert (len(data.train), len(data.val)) == (1, 3)


def test_a_class_that_train_lacks_is_said(tmp_path: Path) -> None:
    for i, part in enumerate(("train", "train", "val")):
        write(tmp_path, f"{part}/{i}", i)
    (tmp_path / "classes.txt").write_text("0 sky\n1 sea\n3 border\n5 ship\n")
    assert "no mask of train" not in open_masked(str(tmp_path)).note
    ids = ids_of(2)
    ids[1] = 5
    (tmp_path / "masks/val/2.png").write_bytes(encoded(ids))
    assert "no mask of train has 'ship', which cannot be learned then" in open_masked(str(tmp_path)).note
    assert "no mask of train" not in open_masked(str(tmp_path), ignore=("ship",)).note


def test_parts_above_the_two_folders(tmp_path: Path) -> None:
    for i, part in enumerate(("train", "train", "valid")):
        write(tmp_path, str(i), i, f"{part}/images", f"{part}/masks")
    data = open_masked("set", root=_renamed(tmp_path))
    assert names(data.train) == ["train/images/0.jpg", "train/images/1.jpg"]
    assert names(data.val) == ["valid/images/2.jpg"]


def _renamed(folder: Path) -> Path:
    shutil.copytree(folder, folder / "root/set")
    return folder / "root"


def test_without_a_list_ids_are_classes_and_that_is_said(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path, classes=None)), ignore=("3",))
    assert data.mask_classes == ("0", "1")
    assert "there is no classes.txt: the classes are the ids found, '0', '1', '3'; '3' ignored" in data.note


def test_a_class_that_no_mask_has_is_said(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path, classes=CLASSES + "9 sun\n")))
    assert data.mask_classes == ("sky", "sea", "border", "sun")
    assert "no mask has 'sun'" in data.note


def test_255_is_a_class_where_it_is_listed(tmp_path: Path) -> None:
    data = open_masked(str(folder(tmp_path, classes=CLASSES + "255 ship\n")))
    assert data.mask_classes == ("sky", "sea", "border", "ship")
    assert set(np.unique(data.train.mask(0))) == {0, 1, 2, 3}


def test_palettes_and_16_bits(tmp_path: Path) -> None:
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
    assert "'background', 'square' ignored" in bare.note
    assert [sorted(set(bare.train.mask(i).ravel().tolist())) for i in range(3)] == [[0, 255], [255], [1, 255]]
    assert np.array_equal(bare.train.mask(0) == 0, data.train.mask(0) == 1)
