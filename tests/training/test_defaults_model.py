"""Automatic choice of model, image size and decoder, tested at the thresholds between choices."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automatic_choices import TINY, build_model, checkpoint, chosen, sample_images
from vitreous import create
from vitreous.common.checks import BadValue, as_size
from vitreous.data.sources.base import Source, StoredImage
from vitreous.model.build import build
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.options import (
    ClassToken,
    Conditional,
    DecoderConfig,
    Gelu,
    GlobalAverage,
    Learned1d,
    LinearDecoder,
    MaskDecoder,
)
from vitreous.model.presets import configure
from vitreous.training import Segmenting
from vitreous.training.defaults import typical_side
from vitreous.weights.io.errors import UnsupportedByFormat
from vitreous.weights.load import load, save


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An encoder, and segmenters with either decoder."""
    decoders = {"vit": None, "linear": LinearDecoder(4), "mask": MaskDecoder(1)}
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: checkpoint(folder / name, decoder) for name, decoder in decoders.items()}


# ---- The size of the images --------------------------------------------------------------------------------------


class Mixed(Source):
    """Images of these sizes; None is an unreadable image."""

    classes = ("cat", "dog")

    def __init__(self, *sizes: tuple[int, int] | None):
        self.sizes, self.labels = sizes, np.zeros(len(sizes), dtype=np.int64)
        self.looked: list[int] = []

    def image(self, index: int) -> StoredImage:
        self.looked.append(index)
        size = self.sizes[index]
        return b"broken" if size is None else np.zeros((*size, 3), dtype=np.uint8)

    def name(self, index: int) -> str:
        return f"{index}.jpg"


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ([(10, 90)], 10),
        ([(10, 90), (30, 20), (200, 25)], 20),  # the shorter side, in the middle
        ([(500, 400)] * 40 + [(64, 64)] * 60, 64),  # some of all
        ([None, (30, 30), None, (50, 50), (40, 40)], 40),
    ],
    ids=["one", "three", "many", "unreadable"],
)
def test_typical_side_is_the_median_of_a_sample(sizes: list[tuple[int, int] | None], side: int) -> None:
    source = Mixed(*sizes)
    assert typical_side(source) == side
    assert len(source.looked) == len(set(source.looked)) == min(len(sizes), 25)


@pytest.mark.parametrize(("count", "looks"), [(4, 4), (30, 25)])
def test_unreadable_images_only_is_an_error(count: int, looks: int) -> None:
    with pytest.raises(ValueError, match=rf"{looks} sampled images .*0\.jpg"):
        typical_side(Mixed(*[None] * count))


# ---- The model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "count", "side", "model", "few"),
    [
        ("classify", 100, 48, "ViT-Lite-7/4", True),
        ("classify", 99_999, 32, "ViT-Lite-7/4", True),
        ("classify", 100_000, 32, "ViT-Lite-7/4", False),
        ("classify", 49_999, 49, "ViT-Ti/16", True),
        ("classify", 50_000, 49, "ViT-S/16", True),
        ("classify", 100_000, 224, "ViT-S/16", False),
        ("mae", 100, 96, "ViT-Ti/16", True),
        ("segment", 100, 97, "ViT-Ti/16", True),
        ("segment", 100, 96, "ViT-Lite-6/4", True),
        ("segment", 100_000, 32, "ViT-Lite-6/4", True),
    ],
)
def test_model_depends_on_number_and_size_of_images(task: Any, count: int, side: int, model: str, few: bool) -> None:
    """Few images get a model with convolutional positions and average pooling."""
    config = chosen(count, side, task=task).config
    parts = configure(config.model or "", image_size=64, overrides=config.overrides)
    assert config.model == model
    assert isinstance(parts, ViTConfig)
    kinds = (type(parts.position), type(parts.pool), parts.class_token)
    assert kinds == ((Conditional, GlobalAverage, False) if few else (Learned1d, ClassToken, True))
    narrow = ((8, 8), 128, 4, 4, 256)
    shape = (parts.patch_size, parts.width, parts.depth, parts.num_heads, parts.mlp_width)
    assert (shape == narrow) == (model == "ViT-Lite-6/4")


@pytest.mark.parametrize("side", [32, 128])
def test_note_about_positions_names_the_flag_that_keeps_the_model_convertible(side: int, tmp_path: Path) -> None:
    notes = " ".join(chosen(100, side).notes)
    assert "other libraries" in notes
    flag = re.search(r"--model (\S+)", notes)
    assert flag
    few = {"depth": 1, "mlp": Gelu("erf")}
    model = configure(flag[1], overrides={**few, **chosen(100, side).config.overrides})
    with pytest.raises(UnsupportedByFormat, match=r"Conditional.*--model"):
        save(build(model), tmp_path / "few.pth", format="timm")
    named = chosen(100, side, model=flag[1]).config
    save(build(configure(flag[1], overrides={**few, **named.overrides})), tmp_path / "x.pth", format="timm")


@pytest.mark.parametrize("side", [32, 64, 128])
@pytest.mark.parametrize("task", ["classify", "segment"])
def test_given_overrides_or_models_are_not_extended(task: Any, side: int, checkpoints: dict[str, Path]) -> None:
    assert chosen(side=side, task=task, overrides={"registers": 1}).config.overrides == {"registers": 1}
    named = chosen(side=side, task=task, model="ViT-Ti/16").config
    assert (named.model, named.overrides) == ("ViT-Ti/16", {})
    started = chosen(side=side, task=task, init=checkpoints["vit"]).config
    assert (started.model, started.overrides) == (None, {})


# ---- The image size --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "cpu", "cuda"),
    [
        (8, 16, 16), (17, 20, 20), (28, 28, 28), (29, 32, 32), (48, 32, 32), (49, 64, 64), (95, 64, 64),
        (96, 128, 128), (159, 128, 128), (160, 128, 224), (500, 128, 224),
    ],
)  # fmt: skip
def test_image_size_depends_on_images_and_device(side: int, cpu: int, cuda: int) -> None:
    for device, size in (("cpu", cpu), ("cuda", cuda)):
        found = chosen(side=side, device=device)
        assert found.config.image_size == (size,)
        assert f"image_size = {size} (for images of about {side} pixels per side on {device})" in found.notes
        pixels = chosen(side=side, device=device, model="ViT-Ti/16", overrides={"patch_size": 1})  # which tile any size
        assert pixels.config.image_size == (size,)


@pytest.mark.parametrize(("patch", "size"), [(24, 120), (30, 120), (90, 90), (66, 132), (191, 191)])
def test_image_size_is_the_nearest_that_patches_tile(patch: int, size: int) -> None:
    assert chosen(side=120, model="ViT-Ti/16", overrides={"patch_size": patch}).config.image_size == (size,)


def test_an_unknown_model_is_rejected() -> None:
    with pytest.raises(BadValue, match="ViT-Q/16"):
        chosen(side=120, model="ViT-Q/16")


@pytest.mark.parametrize(
    ("task", "device", "count", "side", "size"),
    [
        ("classify", "cuda", 100, 500, 224), ("classify", "cuda", 100, 32, 224), ("classify", "mps", 100, 96, 224),
        ("classify", "cuda", 20_001, 32, 112), ("classify", "cuda", 20_001, 49, 224),
        ("classify", "cpu", 100, 159, 112), ("classify", "cpu", 100, 160, 224),
        ("segment", "cuda", 100, 160, 336), ("segment", "cpu", 100, 160, 224),
    ],
)  # fmt: skip
def test_large_checkpoints_are_fine_tuned_at_a_smaller_size(
    task: Any, device: str, count: int, side: int, size: int, tmp_path: Path
) -> None:
    init = checkpoint(tmp_path / "m", side=518, patch=14)
    found = chosen(count, side, device, task=task, init=init)
    assert found.config.image_size == (size,)
    assert any(note.startswith(f"image_size = {size} (") and "518 x 518" in note for note in found.notes)
    assert chosen(count, side, device, task=task, init=init, image_size=(518,)).config.image_size == (518,)


@pytest.mark.parametrize(("own", "patch"), [(224, 16), (256, 16), (98, 14)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_checkpoints_up_to_256_pixels_keep_their_size(own: int, patch: int, device: str, tmp_path: Path) -> None:
    found = chosen(device=device, init=checkpoint(tmp_path / "m", side=own, patch=patch))
    assert found.config.image_size == ()
    assert f"image_size = {own} {own} (from the checkpoint)" in found.notes


def test_limit_of_a_non_square_checkpoint_counts_its_pixels(tmp_path: Path) -> None:
    save(create("ViT-Ti/16", num_classes=0, image_size=(192, 512), overrides=TINY), tmp_path / "m")
    found = chosen(init=tmp_path / "m")
    assert 0 < math.prod(as_size(found.config.image_size)) <= 224 * 224
    assert any("192 x 512" in note for note in found.notes)
    save(create("ViT-Ti/16", num_classes=0, image_size=(96, 256), overrides=TINY), tmp_path / "n")
    assert chosen(init=tmp_path / "n").config.image_size == ()


def test_overrides_complete_a_foreign_checkpoint(tmp_path: Path) -> None:
    """timm's files do not contain the number of heads, and a width of 32 does not imply it."""
    save(load(checkpoint(tmp_path / "m")), tmp_path / "m.pth", format="timm", lossy=True)
    with pytest.raises(ValueError, match="number of heads"):
        chosen(init=tmp_path / "m.pth")
    assert (
        "image_size = 48 48 (from the checkpoint)" in chosen(init=tmp_path / "m.pth", overrides={"num_heads": 2}).notes
    )


# ---- The decoder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "how", "expected", "decoder"),
    [
        (None, Segmenting(), "cells = 8 (for outlines finer than a patch)", LinearDecoder(8)),
        (None, Segmenting(decoder="linear"), "cells = 8 (for outlines finer than a patch)", LinearDecoder(8)),
        (None, Segmenting(cells=2), "", LinearDecoder(2)),
        (None, Segmenting(decoder="mask"), "", MaskDecoder(2)),
        (None, Segmenting(mask_blocks=3), "", MaskDecoder(3)),
        ("vit", Segmenting(), "cells = 4 (for outlines finer than a patch)", LinearDecoder(4)),
        ("linear", Segmenting(), "decoder = LinearDecoder(cells=4) (from the checkpoint)", LinearDecoder(4)),
        ("mask", Segmenting(), "decoder = MaskDecoder(depth=1) (from the checkpoint)", MaskDecoder(1)),
        ("mask", Segmenting(decoder="linear"), "cells = 4 (for outlines finer than a patch)", LinearDecoder(4)),
        ("mask", Segmenting(cells=8), "", LinearDecoder(8)),
        ("linear", Segmenting(mask_blocks=3), "", MaskDecoder(3)),
    ],
    ids=str,
)
def test_decoder_is_the_given_one_or_the_checkpoints_or_linear_with_cells(
    init: str | None, how: Segmenting, expected: str, decoder: DecoderConfig, checkpoints: dict[str, Path]
) -> None:
    start = {"init": checkpoints[init]} if init else {}
    found = chosen(side=48, task="segment", segmenting=how, **start)
    cells = int(expected.split()[2]) if expected.startswith("cells") else how.cells
    assert found.config.segmenting == dataclasses.replace(how, cells=cells)
    assert [note for note in found.notes if "decoder" in note or "cells" in note] == ([expected] if expected else [])
    model = build_model(found.config, sample_images(100, 48)).config
    assert isinstance(model, SegmenterConfig)
    assert model.decoder == decoder


@pytest.mark.parametrize("task", ["classify", "mpp"])
def test_other_tasks_choose_no_decoder(task: Any, checkpoints: dict[str, Path]) -> None:
    for start in ({}, {"init": checkpoints["mask"]}):
        found = chosen(task=task, **start)
        assert found.config.segmenting == Segmenting()
        assert not any("decoder" in note or "cells" in note for note in found.notes)


# ---- Advice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "side", "init", "advised"),
    [(1_999, 49, False, True), (2_000, 49, False, False), (1_999, 48, False, False), (1_999, 49, True, False)],
)
def test_few_images_get_the_advice_to_use_a_checkpoint(
    count: int, side: int, init: bool, advised: bool, checkpoints: dict[str, Path]
) -> None:
    """Small ones, such as digits, are simple enough."""
    advice = chosen(count, side, **({"init": checkpoints["vit"]} if init else {})).advice
    assert ("1999 images" in advice and "--init" in advice) if advised else advice == ""
