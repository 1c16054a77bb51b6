import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.common.checks import Size
from vitreous.data.image import fit
from vitreous.explanation import draw
from vitreous.explanation.draw import (
    LABEL,
    LONGEST,
    SHORTEST,
    Canvas,
    canvas_of,
    model_region,
    onto,
    scaled,
    sheet,
    tile_for,
)
from vitreous.model.config import ViTConfig
from vitreous.model.options import Preprocessing

FITS = {
    "crop": Preprocessing(crop_fraction=0.8),
    "squash": Preprocessing(fit="squash"),
    "squash-crop": Preprocessing(fit="squash-crop", crop_fraction=0.7),
}


def with_mark(size: Size, box: tuple[int, int, int, int]) -> np.ndarray:
    """A dark image with a white rectangle (top, left, height, width)."""
    pixels = np.full((*size, 3), 40, dtype=np.uint8)
    top, left, height, width = box
    pixels[top : top + height, left : left + width] = 255
    return pixels


def config(how: Preprocessing, image_size: Size = (112, 192), pad: bool = False) -> ViTConfig:
    return ViTConfig(image_size=image_size, patch_size=(16, 16), preprocessing=how, pad=pad)


def brightness(image: np.ndarray, config: ViTConfig) -> np.ndarray:
    """Mean of each patch of the model's input."""
    pixels = fit(image, config.image_size, config.preprocessing).float().mean(0)
    (gh, gw), (uh, uw) = config.grid, config.patch_stride
    padded = torch.zeros(gh * uh, gw * uw)
    padded[: pixels.shape[0], : pixels.shape[1]] = pixels
    return padded.reshape(gh, uh, gw, uw).mean((1, 3)).numpy()


@pytest.mark.parametrize("how", FITS.values(), ids=FITS)
@pytest.mark.parametrize("size", [(600, 800), (900, 500), (150, 480)], ids=str)
def test_maps_are_drawn_where_the_image_content_was(how: Preprocessing, size: Size) -> None:
    """A mark is preprocessed and becomes a map; drawn on the image, the map covers the mark."""
    box = (int(0.42 * size[0]), int(0.55 * size[1]), size[0] // 8, size[1] // 10)
    image = with_mark(size, box)
    model = config(how)
    canvas = canvas_of(image, model)
    assert canvas.pixels.shape[0] / canvas.pixels.shape[1] == pytest.approx(size[0] / size[1], rel=0.01)
    drawn = np.zeros(canvas.pixels.shape[:2])
    drawn[canvas.region.pixels()] = onto(canvas, brightness(image, model) - 40)
    scale = canvas.pixels.shape[0] / size[0]
    rows, columns = np.nonzero(drawn > 0.5 * drawn.max())
    unit = [side / count for side, count in zip(canvas.region[2:], canvas.grid, strict=True)]  # of a patch, on display
    assert (rows.min() + rows.max()) / 2 == pytest.approx(scale * (box[0] + box[2] / 2), abs=unit[0] / 2)
    assert (columns.min() + columns.max()) / 2 == pytest.approx(scale * (box[1] + box[3] / 2), abs=unit[1] / 2)
    centre = (round(scale * (box[0] + box[2] / 2)), round(scale * (box[1] + box[3] / 2)))
    assert drawn[centre] > 0.5 * drawn.max()
    assert (canvas.pixels[centre] > 200).all()


@pytest.mark.parametrize("how", FITS.values(), ids=FITS)
@pytest.mark.parametrize("size", [(375, 500), (500, 375), (64, 640)], ids=str)
def test_the_region_is_the_one_that_preprocessing_cuts_out(how: Preprocessing, size: Size) -> None:
    """Coordinates as colours: the colour of an input pixel is its place in the image."""
    y, x = np.mgrid[: size[0], : size[1]]
    image = np.stack([255 * y / size[0], 255 * x / size[1], 0 * x], axis=-1).round().astype(np.uint8)
    pixels = fit(image, (112, 192), how).float()
    box = model_region(size, (112, 192), how)
    for row, column in ((0, 0), (111, 191), (56, 96)):
        there = (box.top + (row + 0.5) / 112 * box.height, box.left + (column + 0.5) / 192 * box.width)
        assert float(pixels[0, row, column]) / 255 * size[0] == pytest.approx(there[0], abs=0.02 * size[0] + 1)
        assert float(pixels[1, row, column]) / 255 * size[1] == pytest.approx(there[1], abs=0.02 * size[1] + 1)


def test_the_exif_orientation_is_applied() -> None:
    stored = Image.fromarray(with_mark((200, 300), (20, 250, 30, 30)))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    file = io.BytesIO()
    stored.save(file, "JPEG", exif=exif, quality=95)
    canvas = canvas_of(file.getvalue(), config(FITS["crop"]))
    assert canvas.pixels.shape == (448, 299, 3)
    rows, columns = np.nonzero(canvas.pixels.mean(-1) > 200)
    assert rows.mean() / 448 == pytest.approx(265 / 300, abs=0.02)
    assert columns.mean() / 299 == pytest.approx(1 - 35 / 200, abs=0.02)


def test_large_images_are_shrunk_and_small_ones_enlarged() -> None:
    large = canvas_of(np.zeros((1000, 3000, 3), dtype=np.uint8), config(FITS["crop"]))
    assert large.pixels.shape == (LONGEST // 3, LONGEST, 3)
    small = canvas_of(np.zeros((100, 75, 3), dtype=np.uint8), config(FITS["crop"]))
    assert small.pixels.shape == (SHORTEST, SHORTEST * 3 // 4, 3)
    tiny = canvas_of(np.eye(8, dtype=np.uint8) * 255, ViTConfig(image_size=(8, 8), patch_size=(2, 2), channels=1))
    assert tiny.blocky
    assert set(np.unique(tiny.pixels)) == {0, 255}  # squares, nothing between them


def test_padding_is_cut_off() -> None:
    model = config(FITS["squash"], (100, 180), pad=True)
    assert model.grid == (7, 12)  # 112 x 192 pixels
    canvas = canvas_of(np.zeros((500, 900, 3), dtype=np.uint8), model)
    last = np.zeros((7, 12), dtype=np.float32)
    last[-1] = 1
    field = onto(canvas, last, smooth=False)
    assert field.shape == (500, 900)
    assert (field[480:] == 1).all()
    assert not field[:479].any()  # 96 of 100 rows


@pytest.fixture
def canvas() -> Canvas:
    """200 x 400 pixels, 448 wide on display; the model receives the middle."""
    pixels = np.random.default_rng(0).integers(0, 255, (200, 400, 3), dtype=np.uint8)
    return canvas_of(pixels, config(Preprocessing(crop_fraction=0.9), (112, 112)))


def test_the_image_outside_of_the_region_is_dimmed(canvas: Canvas) -> None:
    rows, columns = canvas.region.pixels()
    drawn = draw.patches(canvas)
    outside = np.ones(drawn.shape[:2], dtype=bool)
    outside[rows, columns] = False
    assert (np.ptp(drawn[outside].astype(int), axis=-1) == 0).all()  # without colours ...
    assert drawn[outside].std() < 0.5 * canvas.pixels[outside].std()  # ... and with little contrast
    inside = canvas.pixels[rows, columns]
    assert (drawn[rows, columns] == inside).all(axis=-1).mean() > 0.7  # all but the lines


def test_overlays_are_bright_for_high_values_and_coloured_by_sign(canvas: Canvas) -> None:
    values = np.zeros((7, 7), dtype=np.float32)
    values[3, 5], values[3, 1] = 1, -1
    rows, columns = canvas.region.pixels()
    unit = (columns.stop - columns.start) / 7
    spot = lambda x: (round(rows.start + 3.5 * unit), round(columns.start + (x + 0.5) * unit))  # noqa: E731
    hot = draw.overlay(canvas, values.clip(0)).astype(int)
    assert hot[spot(5)].sum() > 500
    assert hot[spot(5)].sum() > hot[spot(1)].sum() + 200
    red, _, blue = draw.signed_overlay(canvas, values).astype(int)[spot(5)]
    assert red > blue + 80
    red, _, blue = draw.signed_overlay(canvas, values).astype(int)[spot(1)]
    assert blue > red + 50
    framed = draw.marked(canvas, canvas.pixels, (3, 5))
    changed = np.nonzero((framed != canvas.pixels).any(axis=-1))
    assert changed[1].min() == pytest.approx(columns.start + 5 * unit, abs=4)
    assert changed[1].max() == pytest.approx(columns.start + 6 * unit, abs=4)


def test_colours_of_patches_are_kept(canvas: Canvas) -> None:
    colours = np.random.default_rng(0).random((7, 7, 3)).astype(np.float32)
    shown = np.full_like(colours, np.nan)
    shown[2, 3] = colours[2, 3]
    rows, columns = canvas.region.pixels()
    drawn = draw.coloured(canvas, shown)[rows, columns]
    unit = drawn.shape[0] / 7
    np.testing.assert_allclose(drawn[round(2.5 * unit), round(3.5 * unit)], 255 * colours[2, 3], atol=1)
    assert np.ptp(drawn[round(5.5 * unit), round(3.5 * unit)].astype(int)) == 0


def test_scaling() -> None:
    assert scaled(np.array([0.0, 0.0])).tolist() == [0, 0]
    assert scaled(np.array([3.0, 3.0])).tolist() == [1, 1]
    assert scaled(np.array([1.0, 3.0]), from_zero=False).tolist() == [0, 1]
    assert scaled(np.array([-1.0, 1.0])).tolist() == [0, 1]


def test_tiles_keep_the_aspect() -> None:
    assert tile_for((4, 4), 100) == (100, 100)
    assert tile_for((37, 20), 20) == (20, 11)
    assert tile_for((1, 3), 9) == (3, 9)


def test_a_sheet_has_tiles_labels_and_a_transparent_background() -> None:
    one, other = np.full((2, 3, 3), 10, dtype=np.uint8), np.full((2, 3, 3), 200, dtype=np.uint8)
    plain = np.asarray(sheet([[one, other], [other]], (20, 30)))
    assert plain.shape == (46, 66, 4)
    assert plain[0, 0].tolist() == [10, 10, 10, 255]
    assert plain[45, 0].tolist() == plain[0, 65].tolist() == [200, 200, 200, 255]
    assert plain[45, 65, 3] == 0
    named = np.asarray(sheet([[one, other], [other, one]], (20, 30), ["layer 0", "layer 1"], ["a", "b"]))
    left = named.shape[1] - 66
    assert named.shape[0] == 46 + 24
    assert left > 30
    written = named[24:44, : left - 10]
    assert written[..., 3].any()
    assert (written[written[..., 3] == 255][:, :3] == LABEL).all()
