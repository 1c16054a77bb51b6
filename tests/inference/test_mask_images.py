from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.common.checks import BadValue
from vitreous.data.masks.files import read_ids
from vitreous.inference.mask_images import background_of, overlay, palette, with_legend, write_mask
from vitreous.report.colours import to_oklab


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


@pytest.mark.parametrize(("count", "distance"), [(12, 0.15), (60, 0.08), (254, 0.04)])
def test_colours_are_perceptually_distinct(count: int, distance: float) -> None:
    """Oklab distances; 0.02 is about the smallest that one can see. Pascal VOC's colours have 0.03, 0.02 and 0.004."""
    lab = to_oklab(palette(background=0)[: count + 1] / 255)
    assert min(np.linalg.norm(a - b) for a, b in combinations(lab, 2)) > distance


@pytest.mark.parametrize("background", [None, 0, 5, 254])
def test_colours_differ_and_only_the_background_is_black(background: int | None) -> None:
    colours = palette(background)
    assert len({tuple(colour) for colour in colours.tolist()}) == 256
    black = [i for i, colour in enumerate(colours.tolist()) if colour == [0, 0, 0]]
    assert black == ([] if background is None else [background])
    assert colours[255].tolist() == [255, 255, 255]


def test_an_overlay_tints_all_but_the_background() -> None:
    image = np.full((2, 3, 3), 100, np.uint8)
    ids = np.array([[0, 1, 2], [255, 1, 0]], np.uint8)
    shown = overlay(image, ids, 0.5, background=0)
    assert shown[0, 0].tolist() == shown[1, 0].tolist() == shown[1, 2].tolist() == [100, 100, 100]
    halfway = np.rint((100 + palette(0).astype(float)) / 2)
    assert shown[0, 1].tolist() == halfway[1].tolist()
    assert shown[0, 2].tolist() == halfway[2].tolist()
    assert overlay(image, ids, 0.5)[0, 0].tolist() == halfway[1].tolist()  # without a background, 0 is the first class
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


@pytest.mark.parametrize("size", [(40, 30), (640, 20), (3000, 10)])
def test_a_legend_has_a_swatch_for_every_class_below_the_image(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (1, 2, 3))
    entries = [(name, palette()[i].tolist()) for i, name in enumerate(("sky", "a very long class name", "日本"))]
    shown = np.asarray(with_legend(image, entries))
    assert (shown[: size[1], : size[0]] == (1, 2, 3)).all()
    below = shown[size[1] :].reshape(-1, 3)
    for _, colour in entries:
        assert (below == colour).all(axis=1).sum() > 50
    assert with_legend(image, []) is image
