"""transformers' preprocessor_config.json, both ways: what a picture goes through before the model sees it.

The model keeps the size of its positions. Where the processor shows pictures at another one (DINOv2: 224 pixels to
models of 518), the provenance says so, and `load(..., image_size=224)` does the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from vitreous.common.json_files import read_json_object
from vitreous.model.centre_crop import scaled
from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, Geometry, Preprocessing
from vitreous.weights.formats.base import Found, Inference
from vitreous.weights.formats.huggingface.config import Family, family_in
from vitreous.weights.formats.huggingface.json_fields import Size, flag, numbers, real, size, whole, word
from vitreous.weights.io.safetensors_file import BadCheckpoint

FILE = "preprocessor_config.json"

# What the processors do where the file does not say otherwise, by how their names begin.
HALVES = (0.5, 0.5, 0.5)
CLIP = {"image_mean": (0.48145466, 0.4578275, 0.40821073), "image_std": (0.26862954, 0.26130258, 0.27577711)}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "resample": 2, "image_mean": HALVES, "image_std": HALVES},
    "DeiT": {"size": 256, "crop_size": 224, "do_center_crop": True, "resample": 3}
    | {"image_mean": HALVES, "image_std": HALVES},
    "Bit": {"size": {"shortest_edge": 224}, "crop_size": 224, "do_center_crop": True, "resample": 3} | CLIP,
}
PROCESSORS: dict[Family, str] = {
    "vit": "ViT",
    "deit": "DeiT",
    "vit_mae": "ViT",
    "vit_msn": "ViT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
}

# What the processors of the published models do: for weights that come without one.
PUBLISHED: dict[Family, Preprocessing] = {
    "vit": Preprocessing(fit="squash", crop_fraction=1.0, interpolation="bilinear", geometry="huggingface"),
    "deit": replace(IMAGENET, fit="squash-crop", geometry="huggingface"),
    "vit_mae": replace(IMAGENET, fit="squash", crop_fraction=1.0, geometry="huggingface"),
    "vit_msn": replace(IMAGENET, fit="squash", crop_fraction=1.0, interpolation="bilinear", geometry="huggingface"),
    "dinov2": replace(IMAGENET, geometry="huggingface"),
    "dinov2_with_registers": replace(IMAGENET, geometry="huggingface"),
}
RESAMPLING: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
PIXEL = 1 / 255


# ---- Reading ---------------------------------------------------------------------------------------------------------


def infer_preprocessing(found: Found, guess: Inference) -> None:
    file, family = found.path / FILE, family_in(found)
    if not file.is_file():
        guess.prepare(f"there is no {FILE}: that of the published models", PUBLISHED[family])
        return
    document = read_json_object(file, BadCheckpoint)
    said = word(file, document, "image_processor_type", word(file, document, "feature_extractor_type", ""))
    kind = next((kind for kind in DEFAULTS if said.startswith(kind)), PROCESSORS[family])
    document = DEFAULTS[kind] | {key: value for key, value in document.items() if value is not None}
    how, shown, unlike = read_processor(file, document, shortest=kind == "Bit")
    if unlike:
        guess.assume("; ".join(unlike), preprocessing=how)
    else:
        guess.set(preprocessing=how)
    if shown is not None and shown != (native := guess.fields["image_size"]):
        reason = f"that of its positions; its processor shows pictures at {shown[0]} x {shown[1]}, as image_size= can"
        guess.follow(reason, image_size=native)


def read_processor(
    file: Path, document: Mapping[str, Any], shortest: bool
) -> tuple[Preprocessing, Size | None, list[str]]:
    """The preprocessing, the size of its result, and a line for each step that we do differently.

    shortest: whether a size of one number is that of the shorter side.
    """
    unlike = []
    number = whole(file, document, "resample", 3)
    if number not in RESAMPLING:
        unlike.append(f"its processor resamples in Pillow's way {number}, we by bicubic interpolation")
    mean, std = _scaled(file, document)
    edge, resized = _resized(file, document, shortest)
    crop = size(file, document, "crop_size", None) if flag(file, document, "do_center_crop", False) else None
    fit: Literal["crop", "squash", "squash-crop"] = "crop" if edge else "squash-crop" if crop else "squash"
    if not flag(file, document, "do_resize", True):
        unlike.append("its processor does not resize pictures, we do")
    elif edge and not crop:
        unlike.append("its processor does not crop pictures, we do")
    fraction = 1.0
    if crop:
        fraction = max(crop) / (edge or max(resized or crop))
        if not 0.01 <= fraction <= 1:
            unlike.append(f"its processor cuts {crop[0]} x {crop[1]} out of {document['size']}, we all that there is")
            fraction = 1.0
    how = Preprocessing(mean, std, fit, fraction, RESAMPLING.get(number, "bicubic"), "huggingface")
    # What we wrote ourselves, which rounds differently, if it still leads to the same sizes.
    exact, geometry = real(file, document, "crop_fraction", fraction), word(file, document, "geometry", "huggingface")
    if 0.01 <= exact <= 1 and geometry in get_args(Geometry):
        own = replace(how, crop_fraction=exact, geometry=cast(Geometry, geometry))
        how = own if not crop or scaled(crop, own) == scaled(crop, how) else how
    return how, crop or resized, unlike


def _resized(file: Path, document: Mapping[str, Any], shortest: bool) -> tuple[int | None, Size | None]:
    """The length of the shorter side; or else both sides."""
    given = document["size"]
    if isinstance(given, dict) and "shortest_edge" in given:
        edge = whole(file, given, "shortest_edge", 0)
    elif shortest and type(given) is int:
        edge = given
    else:
        return None, size(file, document, "size", None)
    if edge < 1:
        raise BadCheckpoint(f"{file}: size is {given!r}, but must be at least 1")
    return edge, None


def _scaled(file: Path, document: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation for pixels from 0 to 1, whatever theirs are scaled to."""
    factor = real(file, document, "rescale_factor", PIXEL) if flag(file, document, "do_rescale", True) else 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if flag(file, document, "do_normalize", True):
        mean, std = numbers(file, document, "image_mean", (0.0,)), numbers(file, document, "image_std", (1.0,))
    if factor <= 0 or min(std) <= 0:
        raise BadCheckpoint(f"{file}: rescale_factor is {factor:g} and image_std {std}, but must be above 0")
    if abs(factor / PIXEL - 1) > 1e-6:
        mean, std = tuple(x * PIXEL / factor for x in mean), tuple(x * PIXEL / factor for x in std)
    return _one_for_all(mean), _one_for_all(std)


def _one_for_all(values: tuple[float, ...]) -> tuple[float, ...]:
    return values[:1] if len(set(values)) == 1 else values


# ---- Writing ---------------------------------------------------------------------------------------------------------


def transformers_processor(config: ViTConfig) -> dict[str, Any]:
    """The preprocessor_config.json with which `AutoImageProcessor` does to pictures what we do."""
    how, (height, width) = config.preprocessing, config.image_size
    kind = {"squash": "ViT", "squash-crop": "DeiT", "crop": "Bit", "pad": "Bit"}[how.fit]
    sides: dict[str, int] = {"height": height, "width": width}
    document: dict[str, Any] = {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": sides,
        "resample": next(number for number, name in RESAMPLING.items() if name == how.interpolation),
        "do_center_crop": how.fit != "squash",
        "do_rescale": True,
        "rescale_factor": PIXEL,
        "do_normalize": True,
        "image_mean": list(how.mean) * (config.channels if len(how.mean) == 1 else 1),
        "image_std": list(how.std) * (config.channels if len(how.std) == 1 else 1),
        "do_convert_rgb": config.channels == 3,
    }
    if how.fit != "squash":
        before = scaled((height, width), how)
        whole = {"height": before[0], "width": before[1]}
        document["size"] = whole if how.fit == "squash-crop" else {"shortest_edge": max(before)}
        document["crop_size"] = sides
    # For ourselves: sizes are rounded, and transformers rounds margins differently.
    document |= {"crop_fraction": how.crop_fraction, "geometry": how.geometry}
    return document
