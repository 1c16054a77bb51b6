"""Preprocessing gives the same sizes, crops and pixels as timm, transformers and torchvision."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from optional_imports import import_timm
from vitreous.data.image import fit, resize
from vitreous.model.centre_crop import centre, resized_for
from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, Preprocessing
from vitreous.weights.formats.huggingface.format import HuggingFace
from vitreous.weights.formats.huggingface.processor import read_processor, transformers_processor
from vitreous.weights.formats.timm.config import TimmConfig, timm_config
from vitreous.weights.formats.timm.format import Timm

# Landscape, portrait, near and at model sizes, tiny, long. Odd sizes make rounding visible.
PICTURES = [(375, 501), (500, 333), (247, 249), (224, 224), (17, 23), (61, 300)]


def noise(height: int, width: int) -> np.ndarray:
    """Return a gradient with coarse noise, in which a one-pixel shift changes most pixels by more than rounding."""
    generator = np.random.default_rng(height * width)
    small = generator.integers(0, 256, (max(height // 3, 2), max(width // 3, 2), 3), dtype=np.uint8)
    coarse = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR), np.int16)
    ramp = np.linspace(0, 80, height)[:, None, None] + np.linspace(0, 80, width)[None, :, None]
    return np.clip(coarse * 0.7 + ramp, 0, 255).astype(np.uint8)


def check_same_pixels(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that fewer than 1 pixel in 1000 differs by more than one level, since kernels round differently.

    Both round after each pass of a resize; torch resizes rows first, Pillow the cheaper dimension.
    """
    apart = (actual.int() - expected.int()).abs()
    assert apart.max() <= 5
    assert (apart > 1).float().mean() < 0.001


def check_shift_is_detectable(image: torch.Tensor) -> None:
    assert ((image[:, :, 1:].int() - image[:, :, :-1].int()).abs() > 1).float().mean() > 0.3


# ---- timm ------------------------------------------------------------------------------------------------------------


def timm_settings() -> list[dict[str, Any]]:
    """Return every distinct preprocessing of timm's ViT, DeiT and hybrid weights, and a few more."""
    timm = import_timm()
    names = {name for module in ("vision_transformer", "deit", "vision_transformer_hybrid")
             for name in timm.list_models(module=module)}  # fmt: skip
    found = {}
    for tag in timm.list_pretrained():
        if tag.split(".")[0] in names:
            cfg = json.loads(json.dumps(timm.get_pretrained_cfg(tag).to_dict()))
            shown = timm.data.resolve_data_config({}, pretrained_cfg=cfg)
            found[str([shown[key] for key in ("input_size", "crop_pct", "crop_mode", "interpolation")])] = cfg
    assert len(found) >= 20
    base = {"mean": [0.5, 0.4, 0.3], "std": [0.5] * 3, "interpolation": "bicubic"}
    more = [
        base | {"input_size": [3, *size], "crop_pct": crop_pct, "crop_mode": mode}
        for size in ((64, 64), (48, 81), (80, 33))
        for crop_pct, mode in ((0.9, "border"), (1.0, "border"), (0.95, "center"), (0.9, "squash"))
    ]
    return [*found.values(), *more]


@pytest.mark.slow
def test_preprocessing_matches_timm() -> None:
    timm = import_timm()
    for cfg in timm_settings():
        config = timm.data.resolve_data_config({}, pretrained_cfg=cfg)
        transform = timm.data.create_transform(**config, is_training=False, normalize=False)
        how = TimmConfig(Path("x"), "vit", {}, {}, cfg).preprocessing(3)
        size = (config["input_size"][1], config["input_size"][2])
        large = size[0] > 300  # two images are enough
        for image in PICTURES[:2] if large else PICTURES:
            pixels = noise(*image)
            expected = transform(Image.fromarray(pixels))
            check_same_pixels(fit(pixels, size, how), expected)
    check_shift_is_detectable(fit(noise(375, 501), (224, 224), Preprocessing()))


@pytest.mark.parametrize("how", [
    Preprocessing(crop_fraction=0.9), Preprocessing(crop_fraction=0.9, geometry="timm"),
    Preprocessing(fit="squash-crop", crop_fraction=0.95), Preprocessing(fit="pad", crop_fraction=0.9, geometry="timm"),
], ids=str)  # fmt: skip
def test_timm_matches_preprocessing_in_written_config(how: Preprocessing) -> None:
    timm = import_timm()
    config = ViTConfig(image_size=(224, 224), preprocessing=how)
    assert Timm().differences(config, folder=True) == [] == Timm().minor_differences(config)
    written = timm_config(config)["pretrained_cfg"]
    resolved = timm.data.resolve_data_config({}, pretrained_cfg=written)
    transform = timm.data.create_transform(**resolved, is_training=False, normalize=False)
    for image in PICTURES:
        pixels = noise(*image)
        check_same_pixels(fit(pixels, (224, 224), how), transform(Image.fromarray(pixels)))


def test_unsupported_preprocessing_is_reported() -> None:
    small = ViTConfig(image_size=(224, 224), norm_eps=1e-6)

    def reported(how: Preprocessing, size: tuple[int, int] = (224, 224)) -> list[list[str]]:
        config = dataclasses.replace(small, preprocessing=how, image_size=size)
        formats = (Timm(), HuggingFace())
        return [
            lines
            for format in formats
            for lines in (format.differences(config, folder=True), format.minor_differences(config))
        ]

    timm, timm_note, huggingface, huggingface_note = reported(Preprocessing(geometry="huggingface"))
    assert timm == huggingface == huggingface_note == []
    assert "in timm" in " ".join(timm_note)
    timm, timm_note, huggingface, huggingface_note = reported(Preprocessing(crop_fraction=0.9, geometry="timm"))
    assert timm == timm_note == huggingface == []
    assert "in transformers" in " ".join(huggingface_note)
    timm, _, huggingface, _ = reported(Preprocessing(fit="pad", geometry="timm"))
    assert timm == []
    assert "padded" in " ".join(huggingface)
    _, timm_note, huggingface, _ = reported(Preprocessing(), (192, 256))
    assert "bilinear in timm" in " ".join(timm_note)
    assert "is resized to" in " ".join(huggingface)
    assert not any(reported(Preprocessing(fit="squash")))


# ---- transformers ----------------------------------------------------------------------------------------------------

PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"size": {"height": 224, "width": 224}, "resample": 2},
    "DeiT": {"size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}, "resample": 3},
    "DeiT, odd margin": {"size": {"height": 255, "width": 255}, "crop_size": {"height": 224, "width": 224}},
    "Bit": {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "resample": 3},
    "Bit, whole": {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "resample": 3},
    "Bit, not square": {"size": {"shortest_edge": 120}, "crop_size": {"height": 64, "width": 97}, "resample": 2},
    "CLIP": {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "resample": 3},
}


def processors(name: str, fields: dict[str, Any]) -> list[Any]:
    """Return transformers' two implementations, which use Pillow and torchvision."""
    import_timm()  # otherwise importing a torchvision built for another torch fails
    import transformers

    kind = name.split(",")[0]
    names = (f"{kind}ImageProcessorPil", f"{kind}ImageProcessor")
    raw = {"do_rescale": False, "do_normalize": False, "do_convert_rgb": True}
    return [getattr(transformers, one)(**fields, **raw) for one in names if hasattr(transformers, one)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
def test_preprocessing_matches_transformers(name: str) -> None:
    fields = PROCESSORS[name]
    crops = {"do_center_crop": not name.startswith("ViT")}
    how, size, unlike = read_processor(Path("x"), fields | crops | {"do_normalize": False}, shortest="Bit" in name)
    assert not unlike
    assert size is not None
    found = processors(name, fields)
    assert found
    for image in PICTURES:
        pixels = noise(*image)
        for processor in found:
            [expected] = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
            check_same_pixels(fit(pixels, size, how), expected)


@pytest.mark.slow
@pytest.mark.parametrize("how", [
    Preprocessing(geometry="huggingface"), Preprocessing(fit="squash-crop", crop_fraction=0.9, geometry="huggingface"),
    Preprocessing(fit="squash"),
], ids=str)  # fmt: skip
def test_transformers_matches_preprocessing_in_written_config(how: Preprocessing) -> None:
    config = ViTConfig(image_size=(224, 224), preprocessing=how)
    document = transformers_processor(config)
    kind = document.pop("image_processor_type").removesuffix("ImageProcessor")
    raw = {key: value for key, value in document.items() if key in ("size", "crop_size", "resample", "do_center_crop")}
    for image in PICTURES:
        pixels = noise(*image)
        for processor in processors(kind, raw):
            [expected] = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
            check_same_pixels(fit(pixels, (224, 224), how), expected)


# ---- torchvision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resized", "cropped"), [(256, 224), (242, 224), (384, 384), (232, 224), (241, 224)])
def test_preprocessing_matches_torchvision(resized: int, cropped: int) -> None:
    import_timm()
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms._presets import ImageClassification

    preset = ImageClassification(
        crop_size=cropped, resize_size=resized, mean=(0.0,) * 3, std=(1.0,) * 3, interpolation=InterpolationMode.BICUBIC
    )
    how = dataclasses.replace(IMAGENET, crop_fraction=cropped / resized)
    for image in PICTURES:
        pixels = noise(*image)
        expected = (preset(Image.fromarray(pixels)) * 255).round()
        check_same_pixels(fit(pixels, (cropped, cropped), how), expected)


# ---- Older checkpoints -----------------------------------------------------------------------------------------------


def test_config_without_geometry_uses_torchvision_rounding() -> None:
    """Configs from before the field existed round sizes and margins to nearest."""
    from vitreous.common.codec import from_dict

    how = from_dict(Preprocessing, {"crop_fraction": 0.9})
    assert how.geometry == "torchvision"
    assert resized_for((375, 501), (224, 224), how) == (249, 332)
    assert centre((249, 333), (224, 224), how) == (12, 54)
    pixels = noise(375, 501)
    image = resize(torch.from_numpy(pixels).permute(2, 0, 1), (249, 332), "bicubic")
    assert torch.equal(fit(pixels, (224, 224), how), image[:, 12:236, 54:278])
