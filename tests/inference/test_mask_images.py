from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.common.checks import BadValue
from vitreous.data.masks.files import read_ids
from vitreous.inference.mask_images import background_of, overlay, palette, write_mask


def test_masks_keep_ids_and_show_colours(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    write_mask(ids, tmp_path / "mask.png", background=3)
    assert np.array_equal(read_ids((tmp_path / "mask.png").read_bytes()), ids)
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image.convert("RGB")), palette(3)[ids])
    few = np.array([[0, 1], [1, 0]], np.uint8)
    write_mask(few, tmp_path / "few.png")
    assert np.array_equal(read_ids((tmp_path / "few.png").read_bytes()), few)
    with pytest.raises(BadValue, match=r"a \.png file"):
        write_mask(few, tmp_path / "mask.jpg")


def test_masks_use_the_ids_of_the_data_and_the_colours_of_the_classes(tmp_path: Path) -> None:
    classes = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
    write_mask(classes, tmp_path / "mask.png", background=1, ids=(7, 0, 255))
    assert read_ids((tmp_path / "mask.png").read_bytes()).tolist() == [[7, 0, 255], [255, 0, 7]]
    with Image.open(tmp_path / "mask.png") as image:
        assert np.array_equal(np.asarray(image.convert("RGB")), palette(1)[classes])
    write_mask(classes, tmp_path / "wide.png", ids=(1, 300, 65_535))
    assert read_ids((tmp_path / "wide.png").read_bytes()).tolist() == [[1, 300, 65_535], [65_535, 300, 1]]


def test_colours_are_those_of_pascal_voc() -> None:
    # Of its devkit: background, aeroplane, bicycle, bird, boat, bottle, bus, car, cat, ..., tv/monitor.
    voc = palette(background=0)
    assert voc[:9].tolist() == [
        *([0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [0, 0, 128], [128, 0, 128]),
        *([0, 128, 128], [128, 128, 128], [64, 0, 0]),
    ]
    assert voc[20].tolist() == [0, 64, 128]


@pytest.mark.parametrize("background", [None, 0, 5, 254])
def test_colours_differ_and_only_the_background_is_black(background: int | None) -> None:
    colours = palette(background)
    assert len({tuple(colour) for colour in colours.tolist()}) == 256
    black = [i for i, colour in enumerate(colours.tolist()) if colour == [0, 0, 0]]
    assert black == ([] if background is None else [background])
    assert colours[255].tolist() == [255, 255, 255]
    nearest = min(np.abs(a.astype(int) - b).max() for a, b in combinations(colours[:60], 2))
    assert nearest >= 64


def test_an_overlay_tints_all_but_the_background() -> None:
    image = np.full((2, 3, 3), 100, np.uint8)
    ids = np.array([[0, 1, 2], [255, 1, 0]], np.uint8)
    shown = overlay(image, ids, 0.5, background=0)
    assert shown[0, 0].tolist() == shown[1, 0].tolist() == shown[1, 2].tolist() == [100, 100, 100]
    assert shown[0, 1].tolist() == [114, 50, 50]
    assert shown[0, 2].tolist() == [50, 114, 50]
    assert overlay(image, ids, 0.5)[0, 0].tolist() == [114, 50, 50]  # without a background, it is a class like others
    assert np.array_equal(overlay(image, ids, 0.0), image)
    full = overlay(image, ids, 1.0)
    assert np.array_equal(full[ids != 255], palette()[ids[ids != 255]])
    assert (image == 100).all()


def test_invalid_overlays_are_rejected(unchecked: None) -> None:
    image = np.zeros((4, 5, 3), np.uint8)
    with pytest.raises(ValueError, match="got 4 x 5 and 5 x 4 pixels"):
        overlay(image, np.zeros((5, 4), np.uint8))
    with pytest.raises(BadValue, match="alpha"):
        overlay(image, np.zeros((4, 5), np.uint8), alpha=2)


def test_the_background_is_found_by_its_name() -> None:
    assert background_of(("background", "cat")) == 0
    assert background_of(("cat", "Background ")) == 1
    assert background_of(("1", "2")) is None
